package probe

import (
	"context"
	"errors"

	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// ask sends packets to a responder and counts the answers and their bytes.
func (s *stage) ask(from, to string, packets ...[]byte) (answers, bytes int) {
	s.t.Helper()
	c, err := s.net.Net(from).ListenPacket(s.ctx, from+":0")
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	addr, err := resolve(s.ctx, to)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, b := range packets {
		if _, err := c.WriteTo(b, addr); err != nil {
			s.t.Fatal(err)
		}
		if i%100 == 99 {
			wait(msec) // queues are bounded
		}
	}
	buf := make([]byte, 2000)
	c.SetReadDeadline(time.Now().Add(200 * msec))
	for {
		n, _, err := c.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return answers, bytes
		}
		if err != nil {
			s.t.Fatal(err)
		}
		answers, bytes = answers+1, bytes+n
	}
}

func TestResponderDoesNotAmplify(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{})
		request := packet{kind: kindRequest, session: 1, sequence: 2}
		answer := request
		answer.kind = kindAnswer
		if n, size := s.ask(hostC, b, request.encode(nil)); n != 1 || size != packetSize {
			t.Errorf("a request: %d answers of %d bytes", n, size)
		}
		if n, _ := s.ask(hostC, b, answer.encode(nil), []byte{}, []byte("hello"), make([]byte, 1400), request.encode(nil)[:20]); n != 0 {
			t.Errorf("answers and noise: %d answers", n)
		}
	})
}

func TestResponderLimitsEachSource(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{PerSource: 50})
		var flood [][]byte
		for i := range 180 {
			flood = append(flood, packet{kind: kindRequest, sequence: uint64(i)}.encode(nil))
		}
		if n, _ := s.ask(hostC, b, flood...); n < 50 || n > 52 {
			t.Errorf("%d answers to a flood, want the 50 of one second", n)
		}
		if n, _ := s.ask(hostA, b, flood[0]); n != 1 {
			t.Error("another source suffers from it")
		}
		wait(time.Second)
		if n, _ := s.ask(hostC, b, flood[0]); n != 1 {
			t.Error("the source is not answered any more")
		}
	})
}

func TestSourceTableIsBounded(t *testing.T) {
	s := sources{limit: rate.Limit(1), byHost: map[string]*source{}}
	addr := func(i int) net.Addr {
		return &net.UDPAddr{IP: net.IPv4(10, 1, byte(i>>8), byte(i)), Port: i}
	}
	for i := range maxSources {
		if !s.allow(addr(i), epoch.Add(time.Duration(i))) {
			t.Fatalf("source %d was refused", i)
		}
	}
	if s.allow(addr(maxSources), epoch.Add(time.Second)) {
		t.Error("a newcomer got in while all are active")
	}
	if !s.allow(addr(maxSources), epoch.Add(sourceIdle+time.Second)) {
		t.Error("no room was made although all are idle")
	}
	if len(s.byHost) != maxSources {
		t.Errorf("%d sources held", len(s.byHost))
	}
	if _, held := s.byHost["10.1.0.0"]; held {
		t.Error("it was not the oldest that had to go")
	}
	if s.allow(addr(maxSources), epoch.Add(sourceIdle+time.Second)) {
		t.Error("one host twice at once is over its limit")
	}
}

func TestListenSaysWhatIsWrong(t *testing.T) {
	for _, addr := range []string{"nonsense", "192.0.2.1:7613"} {
		if r, err := Listen(t.Context(), ResponderConfig{Net: network.Host(), Addr: addr}); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("listen on %s: %v, %v", addr, r, err)
		}
	}
	taken, err := network.Host().Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := Listen(t.Context(), ResponderConfig{Net: network.Host(), Addr: taken.Addr().String()}); err == nil {
		t.Error("the TCP port was taken, and Listen did not say so")
	}
}

func TestResponderOnHost(t *testing.T) {
	r, err := Listen(t.Context(), ResponderConfig{Net: network.Host(), Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	c, err := network.Host().Dial(t.Context(), r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the responder keeps connections open: %d, %v", n, err)
	}
	c.Close()
	cancel()
	wg.Wait()
	if c, err := network.Host().Dial(t.Context(), r.Addr()); err == nil {
		c.Close()
		t.Error("the port is still open after Run")
	}
}
