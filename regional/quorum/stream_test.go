package quorum

import (
	"context"
	"errors"
	"io"
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
	s := newStream(n, ln, "new", addr)
	defer s.Close()
	for id, want := range map[string]error{"new": nil, "old": ErrOtherServer, "": ErrOtherServer} {
		to := make(chan error, 1)
		go func() {
			c, err := s.Dial(target(id, addr), time.Second)
			if err == nil {
				_, err = c.Write([]byte("hello"))
			}
			to <- err
		}()
		c, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		_, err = io.ReadFull(c, got)
		if !errors.Is(err, want) || want == nil && string(got) != "hello" {
			t.Errorf("meant for %q: read %q, %v; want %v", id, got, err, want)
		}
		if err := <-to; err != nil {
			t.Errorf("meant for %q: dial: %v", id, err)
		}
	}
	if _, err := s.Dial("127.0.0.1:1", time.Second); err == nil {
		t.Error("an address without a server's id was dialled")
	}
}
