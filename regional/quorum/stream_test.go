package quorum

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// TestStreamReachesOnlyNamedServer: a server at the address of a dead server does not
// respond in its place.
func TestStreamReachesOnlyNamedServer(t *testing.T) {
	n := network.Host()
	ln, err := n.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	s := newStream(n, ln, "new", addr, slog.New(slog.DiscardHandler))
	defer s.Close()
	for _, id := range []string{"old", "", "new"} {
		to, err := s.Dial(target(id, addr), time.Second)
		if err != nil {
			t.Fatalf("meant for %q: dial: %v", id, err)
		}
		defer to.Close()
		if id != "new" { // the connection is closed, and does not reach Raft
			if _, err := to.Read(make([]byte, 1)); err == nil {
				t.Errorf("meant for %q: the server answers", id)
			}
			continue
		}
		if _, err := to.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		c, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
			t.Errorf("meant for %q: read %q, %v", id, got, err)
		}
	}
	if _, err := s.Dial("127.0.0.1:1", time.Second); err == nil {
		t.Error("an address without a server's id was dialled")
	}
}

// TestSilentStreamsDoNotReachRaft: hundreds of connections that say nothing, send slowly or send garbage
// cost no buffer of Raft, and keep no server out.
func TestSilentStreamsDoNotReachRaft(t *testing.T) {
	n := network.Host()
	ln, err := n.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newStream(n, ln, "new", ln.Addr().String(), slog.New(slog.DiscardHandler))
	defer s.Close()
	for i := range 600 {
		c, err := n.Dial(t.Context(), ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([][]byte{nil, {greeting}, []byte("garbage of some length"), {greeting, 200, 'n'}}[i%4]); err != nil {
			t.Logf("connection %d: %v", i, err)
		}
	}
	c, err := s.Dial(target("new", ln.Addr().String()), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := s.Accept()
	if err != nil || got.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("Raft gets %v, %v, want the connection of a server", got, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) != 2 {
		t.Errorf("%d connections, want the two ends of one", len(s.conns))
	}
}
