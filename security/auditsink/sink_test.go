package auditsink

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/audit"
)

func entry(seq int64) audit.Entry {
	return audit.Entry{Seq: seq, Time: time.Unix(1, 0), Who: "operator/jane", Verb: "submit", Kind: "job", Name: "a\nb", Outcome: audit.Done}
}

// running runs a sink until stop is called.
func running(t *testing.T, cfg Config) (s *Sink, stop func()) {
	t.Helper()
	s = New(cfg, "server 1", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// numbers returns the numbers of the entries in a file.
func numbers(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []string
	for in := bufio.NewScanner(f); in.Scan(); {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil || l.Trail != "trail" || l.Name != "a\nb" {
			t.Fatalf("%s: %v", in.Text(), err)
		}
		out = append(out, fmt.Sprint(l.Seq))
	}
	return strings.Join(out, " ")
}

// TestFile: each entry is one line, and a file that was renamed is opened again. Entries that wait at
// the end are written.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	s := New(Config{File: path}, "s1", slog.New(slog.DiscardHandler))
	if !s.write([]queued{{"trail", entry(1)}, {"trail", entry(2)}}) {
		t.Fatal(s.failed)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if !s.write([]queued{{"trail", entry(3)}}) {
		t.Fatal(s.failed)
	}
	s.close()
	s, stop := running(t, Config{File: path})
	s.Put("trail", entry(4), entry(5))
	stop()
	if old, now := numbers(t, path+".1"), numbers(t, path); old != "1 2" || now != "3 4 5" {
		t.Errorf("the old file has %q, the new one %q", old, now)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestSyslog: entries reach a server over TCP and over a Unix socket, in the form of RFC 5424.
func TestSyslog(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	path := filepath.Join(t.TempDir(), "log")
	unix, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	for address, receive := range map[string]func() string{
		tcp.Addr().String(): func() string {
			conn, err := tcp.Accept()
			if err != nil {
				return err.Error()
			}
			defer conn.Close()
			in := bufio.NewReader(conn)
			var length int
			if _, err := fmt.Fscanf(in, "%d ", &length); err != nil {
				return err.Error()
			}
			b := make([]byte, length)
			_, err = io.ReadFull(in, b)
			return string(b) + fmt.Sprint(err)[:0]
		},
		"unix:" + path: func() string {
			b := make([]byte, 4096)
			n, err := unix.Read(b)
			return string(b[:n]) + fmt.Sprint(err)[:0]
		},
	} {
		s, stop := running(t, Config{Syslog: address})
		s.Put("trail", entry(7))
		got := receive()
		stop()
		want := fmt.Sprintf(`<110>1 1970-01-01T00:00:01.000000Z server-1 nusa %d audit - {"trail":"trail","seq":7,`, os.Getpid())
		if !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%s: %s", address, got)
		}
	}
}

// TestQueue: an entry that does not fit is dropped, and nothing waits. A sink that writes nowhere is
// nil.
func TestQueue(t *testing.T) {
	s := New(Config{File: "/nowhere/at/all"}, "s1", slog.New(slog.DiscardHandler))
	for i := range maxQueued + 5 {
		s.Put("trail", entry(int64(i)))
	}
	if len(s.entries) != maxQueued || s.write(nil) {
		t.Errorf("%d entries wait", len(s.entries))
	}
	none := New(Config{}, "s1", nil)
	none.Put("trail", entry(1))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if none != nil || none.Run(ended) != nil {
		t.Error("a sink that writes nowhere")
	}
	for address, ok := range map[string]bool{"": true, "unix:/dev/log": true, "host:514": true, "unix:": false, "host": false, ":514": false} {
		if err := (Config{Syslog: address}).Check(); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}
