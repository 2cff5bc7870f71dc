package gossip

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// written is a log that a test reads while others write.
type written struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(b)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// startGroup starts a server of a region that joins the given addresses.
func startGroup(t *testing.T, id, keyFile string, log *written, join ...string) *Group {
	t.Helper()
	g, err := Listen(t.Context(), Config{
		Net: network.Host(), Listen: "127.0.0.1:0", Advertise: "127.0.0.1", Region: "a", KeyFile: keyFile, Join: join, Fast: true,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.SetLocal(Meta{ID: id, Name: id}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", id, err)
		}
	})
	return g
}

// eventually waits until a condition holds, at most 20 s.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end, tick := time.After(20*time.Second), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-end:
			t.Fatalf("after 20 s not yet: %s", what)
		case <-tick.C:
		}
	}
}

func alive(g *Group) string {
	var ids []string
	for _, m := range g.alive() {
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

// TestKeysRotateUnderRunningServers: the servers of a region know each other while their key is
// replaced in steps, without a restart. A server with another key, or without one, learns nothing,
// and the logs of both sides say why.
func TestKeysRotateUnderRunningServers(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var log written
	var groups []*Group
	for i := range 3 {
		var join []string
		if i > 0 {
			join = []string{groups[0].Addr()}
		}
		groups = append(groups, startGroup(t, fmt.Sprintf("s%d", i), write(fmt.Sprintf("key%d", i), line('a')), &log, join...))
	}
	all := func(want string) {
		t.Helper()
		for _, g := range groups {
			eventually(t, "each server knows "+want, func() bool { return alive(g) == want })
		}
	}
	all("s0 s1 s2")
	for _, step := range []struct{ text, keys string }{{line('a') + line('b'), "ab"}, {line('b') + line('a'), "ba"}, {line('b'), "b"}} {
		for i, g := range groups {
			write(fmt.Sprintf("key%d", i), step.text)
			eventually(t, "the keys are "+step.keys, func() bool { return slices.EqualFunc(g.ring.GetKeys(), keysOf(step.keys), bytes.Equal) })
			all("s0 s1 s2")
		}
	}
	// A change that would separate a server has no effect.
	write("key0", line('c'))
	eventually(t, "a line about the refused change", func() bool { return strings.Contains(log.String(), ErrKeyInUse.Error()) })

	var strange written
	old := startGroup(t, "old", write("old", line('a')), &strange, groups[1].Addr())
	without := startGroup(t, "without", "", &strange, groups[1].Addr())
	for _, want := range []string{noKey, notEncrypted} {
		eventually(t, "the region logs: "+want, func() bool { return strings.Contains(log.String(), want) })
	}
	eventually(t, "the stranger logs why it is alone", func() bool {
		return strings.Contains(strange.String(), noKey) && strings.Contains(strange.String(), "this server has no key")
	})
	if got := alive(old) + ", " + alive(without); got != "old, without" {
		t.Errorf("the strangers know %s", got)
	}
	startGroup(t, "s3", write("key3", line('b')), &log, groups[1].Addr())
	all("s0 s1 s2 s3")
}

// TestGossipSurvivesGarbage: whatever other programs send to the port without keys, the server goes on, and
// silent streams keep no server out.
func TestGossipSurvivesGarbage(t *testing.T) {
	var log written
	g := startGroup(t, "s0", "", &log)
	label := append([]byte{labelMsg, 6}, "nusa/a"...)
	vsn := func(n int) []byte { return pushed(t, 1, 0, make([]uint8, n)...) }
	packets, err := net.Dial("udp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	for kind := range 256 {
		for _, rest := range []string{"", "\x80", "\xdf\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff", "\x81\xa3Vsn\xc4\x01\x01",
			"\x86\xa4Node\xa1x\xa4Addr\xc4\x04\x7f\x00\x00\x01\xa4Port\x01\xa3Vsn\xc4\x01\x01\xa4Meta\xc0\xabIncarnation\x01"} {
			if _, err := packets.Write(append(append(bytes.Clone(label), byte(kind)), rest...)); err != nil {
				t.Logf("a packet of type %d: %v", kind, err)
			}
		}
	}
	for _, text := range [][]byte{vsn(1), vsn(5), append(bytes.Clone(label), 8, 0x81, 0xaa, 'U', 's', 'e', 'r', 'M', 's', 'g', 'L', 'e', 'n', 0xcf, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)} {
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(text); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a message that no server sends gets an answer")
		}
	}
	for range 300 {
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(label[:3]); err != nil {
			t.Logf("a slow stream: %v", err)
		}
	}
	next := startGroup(t, "s1", "", &log, g.Addr())
	eventually(t, "both servers know each other", func() bool { return alive(g) == "s0 s1" && alive(next) == "s0 s1" })
	if n := strings.Count(log.String(), "level=WARN"); n > 60 {
		t.Errorf("garbage caused %d lines of the log", n)
	}
}
