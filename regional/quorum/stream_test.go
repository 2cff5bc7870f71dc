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
