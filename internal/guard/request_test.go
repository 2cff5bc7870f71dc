package guard

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"pgregory.net/rapid"
)

// client returns what a client of HTTP/2 sends before and with its first request.
func client(t testing.TB, before func(*http2.Framer)) (silent, call []byte) {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	before(f)
	n := b.Len()
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("headers"), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()[:n:n], b.Bytes()[n:]
}

// TestFirstRequest: the first request is found where it is, however the bytes are divided, and
// never before it.
func TestFirstRequest(t *testing.T) {
	silent, call := client(t, func(f *http2.Framer) {
		_ = f.WriteWindowUpdate(0, 1<<20)
		_ = f.WriteSettingsAck()
		_ = f.WritePing(true, [8]byte{})
	})
	flood, _ := client(t, func(f *http2.Framer) {
		for range 10_000 {
			_ = f.WritePing(false, [8]byte{})
		}
	})
	for name, c := range map[string]struct {
		before, then string
		want         progress
	}{
		"gRPC":                        {string(silent), string(call[:frameHeader]), requested},
		"HTTP/1":                      {"GET /livez HTTP/1.1\r\nHost: x\r\n\r", "\n", requested},
		"HTTP/1 without returns":      {"GET / HTTP/1.0\n", "\n", requested},
		"begins like HTTP/2":          {"PRI * HTTP/2.0\r\n", "\r\n\r\n", requested},
		"too many frames":             {string(silent), string(flood[len(silent):]), senseless},
		"too long headers":            {"GET / HTTP/1.1\r\n", strings.Repeat("a: b\r\n", maxBefore/6), senseless},
		"a handshake of TLS":          {"\x16\x03\x01", strings.Repeat("\x00", maxBefore), senseless},
		"a frame that is too long":    {http2.ClientPreface, "\xff\xff\xff\x06\x00\x00\x00\x00\x00", senseless},
		"nothing but the beginning":   {"PRI", " * HT", waiting},
		"a long line":                 {"GET /", strings.Repeat("a", 1000), waiting},
		"settings and an acknowledge": {string(silent), "", waiting},
	} {
		rapid.Check(t, func(t *rapid.T) {
			var r request
			feed := func(text string) progress {
				for len(text) > 0 {
					n := min(len(text), rapid.SampledFrom([]int{1, 2, 9, 100, 5000}).Draw(t, "bytes"))
					if p := r.add([]byte(text[:n])); p != waiting {
						return p
					}
					text = text[n:]
				}
				return waiting
			}
			if p := feed(c.before); p != waiting {
				t.Fatalf("%s: %d before the request", name, p)
			}
			if p := feed(c.then); p != c.want {
				t.Fatalf("%s: %d, want %d", name, p, c.want)
			}
		})
	}
}

// FuzzRequest: no bytes make the search fail or keep more than a few of them.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(preface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), 3)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		var r request
		step = max(1, step&0xff)
		for len(b) > 0 {
			n := min(step, len(b))
			if r.add(b[:n]) != waiting {
				return
			}
			b = b[n:]
		}
		if len(r.text) > len(preface) {
			t.Errorf("it keeps %d bytes", len(r.text))
		}
	})
}
