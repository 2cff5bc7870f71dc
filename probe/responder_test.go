package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// ask sends packets to a responder and counts the responses and their bytes.
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
			wait(msec) // a pause, because queues are bounded
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
		if n, size := s.ask(hostC, b, request.encode(nil, "b")); n != 1 || size != packetSize {
			t.Errorf("a request: %d answers of %d bytes", n, size)
		}
		if n, _ := s.ask(hostC, b, request.answer().encode(nil, "b"), []byte{}, []byte("hello"), make([]byte, 1400), request.encode(nil, "b")[:20],
			packet{kind: kindRequest, session: 1, sequence: 3}.encode(nil, "a")); n != 0 {
			t.Errorf("responses, noise and packets for another region: %d responses", n)
		}
	})
}

func TestResponderLimitsEachSource(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{PerSource: 50})
		var flood [][]byte
		for i := range 180 {
			flood = append(flood, packet{kind: kindRequest, sequence: uint64(i + 1)}.encode(nil, "b"))
		}
		if n, _ := s.ask(hostC, b, flood...); n < 50 || n > 52 {
			t.Errorf("%d answers to a flood, want the 50 of one second", n)
		}
		if n, _ := s.ask(hostA, b, request(1)); n != 1 {
			t.Error("another source is limited too")
		}
		wait(time.Second)
		if n, _ := s.ask(hostC, b, request(2)); n != 1 {
			t.Error("the source gets no response any more")
		}
	})
}

func request(session uint64) []byte {
	return packet{kind: kindRequest, session: session, sequence: 1}.encode(nil, "b")
}

func TestResponderLimitsTheTotal(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{PerSource: 60, Total: 100})
		answers := 0
		for host := range 4 {
			var flood [][]byte
			for i := range 60 {
				flood = append(flood, request(uint64(1000*host+i)))
			}
			n, _ := s.ask(fmt.Sprint("10.0.1.", host), b, flood...)
			answers += n
		}
		// The four floods took 0.8 s.
		if answers < 100 || answers > 182 {
			t.Errorf("%d answers, want 100 and those of 0.8 s", answers)
		}
	})
}

// A recorded request that is sent again gets no second response, and neither
// does a packet that arrives out of order twice.
func TestReplayedRequestsGetNoResponse(t *testing.T) {
	onStage(t, func(s *stage) {
		key := []byte("key of the federation")
		b := s.responder(hostB, ResponderConfig{Keys: [][]byte{key}})
		at := func(sequence uint64) []byte {
			return packet{kind: kindRequest, from: 1, session: 7, sequence: sequence}.encode(key, "b")
		}
		if n, _ := s.ask(hostA, b, at(3), at(5), at(4), at(100)); n != 4 {
			t.Errorf("%d answers to four requests", n)
		}
		// Request 100 pushed all requests up to 36 out of the window of remembered
		// requests.
		if n, _ := s.ask(hostC, b, at(5), at(4), at(100), at(1), at(36)); n != 0 {
			t.Errorf("%d responses to repeated requests, or to requests too old to be remembered", n)
		}
		if n, _ := s.ask(hostA, b, at(99), at(37), at(101)); n != 3 {
			t.Errorf("%d responses to requests that arrived late, but for the first time", n)
		}
	})
}

// The first response to an unknown session says nothing about earlier requests.
func TestRestartedResponderReportsNoLosses(t *testing.T) {
	for _, tc := range []struct {
		came []uint64
		want arrivals
	}{
		{[]uint64{1}, arrivals{1, 0b1}},
		{[]uint64{1, 2, 3}, arrivals{3, 0b111}},
		{[]uint64{1, 4}, arrivals{4, 0b1001}},
		{[]uint64{40}, arrivals{1, 0b1}},
		{[]uint64{40, 42}, arrivals{3, 0b101}},
		{[]uint64{1, 64}, arrivals{64, 1<<63 | 1}},
		{[]uint64{1, 65}, arrivals{64, 1}},
		{[]uint64{1, math.MaxUint64}, arrivals{64, 1}},
		{[]uint64{1, 2, 5, 3}, arrivals{3, 0b111}}, // the requests up to 3, not up to 5
	} {
		var s session
		var got arrivals
		for _, sequence := range tc.came {
			got, _ = s.note(&s.highest, sequence)
		}
		if got != tc.want {
			t.Errorf("%d: %d bits %b, want %d bits %b", tc.came, got.span, got.bits, tc.want.span, tc.want.bits)
		}
	}
}

func TestResponderTablesAreBounded(t *testing.T) {
	l := newLimits(1, 1e9)
	host := func(i int) string { return fmt.Sprint("10.1.", i>>8, ".", i&255) }
	for i := range maxSources {
		if !l.allow(host(i), epoch.Add(time.Duration(i))) {
			t.Fatalf("source %d was refused", i)
		}
	}
	if !l.allow("newcomer", epoch.Add(msec)) || l.allow("another", epoch.Add(msec)) {
		t.Error("new hosts must share one limit when the table is full")
	}
	if l.allow(host(3), epoch.Add(msec)) {
		t.Error("one host twice at once is over its limit")
	}
	if !l.allow("another", epoch.Add(sourceIdle+time.Second)) {
		t.Error("idle entries were not removed")
	}
	for i := range 10 * maxSources {
		l.allow(host(i), epoch.Add(time.Duration(i)*time.Minute/maxSources))
	}
	if n := len(l.byHost.young) + len(l.byHost.old); n > 2*maxSources {
		t.Errorf("%d sources held", n)
	}
	r := &Responder{sessions: newExpiringTable[sessionKey, *session](maxSessions, sessionIdle), lastSeen: newExpiringTable[uint64, time.Time](maxSessions, sessionIdle),
		limits: newLimits(1e9, 1e9)}
	for i := range uint64(3 * maxSessions) {
		if _, _, fresh := r.note(packet{from: i, session: i, sequence: 1}, host(int(i)%maxSources), epoch.Add(time.Duration(i)*time.Millisecond)); !fresh {
			t.Fatalf("session %d is refused for want of room", i)
		}
	}
	if n := len(r.sessions.young) + len(r.sessions.old) + len(r.lastSeen.young) + len(r.lastSeen.old); n > 4*maxSessions {
		t.Errorf("%d sessions and regions held", n)
	}
}

func TestListenFailsOnBadAddresses(t *testing.T) {
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

func TestResponderOnHostSockets(t *testing.T) {
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

// TestRequestsAtOnce: requests arrive over UDP and over many connects at once, from many
// hosts. Each gets a response, and the tables stay consistent. The test is most useful
// with the race detector.
func TestRequestsAtOnce(t *testing.T) {
	r, err := Listen(t.Context(), ResponderConfig{Net: network.Host(), Region: "b", Addr: "127.0.0.1:0", Total: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var asking sync.WaitGroup
	for i := range byte(8) {
		asking.Go(func() {
			for j := range byte(100) {
				from := &net.TCPAddr{IP: net.IPv4(10, 0, i, j), Port: 1}
				if r.reply(request(uint64(i)<<8|uint64(j)), from, time.Now()) == nil {
					t.Errorf("no answer to %v", from)
					return
				}
			}
		})
	}
	asking.Wait()
}

// TestSilentConnectsDoNotBlockOthers: a host that opens connects and sends
// nothing does not keep others from proving their identity.
func TestSilentConnectsDoNotBlockOthers(t *testing.T) {
	onStage(t, func(s *stage) {
		b := s.responder(hostB, ResponderConfig{})
		var silent sync.WaitGroup
		for i := range maxProofs + 1 {
			if i%64 == 63 {
				silent.Wait() // the backlog is bounded
			}
			silent.Go(func() {
				c, err := s.net.Net(hostC).Dial(s.ctx, b)
				if err != nil {
					t.Error(err)
					return
				}
				context.AfterFunc(s.ctx, func() { c.Close() })
			})
		}
		silent.Wait()
		c, err := s.net.Net(hostA).Dial(s.ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(request(1)); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(proofWithin / 2))
		if _, err := io.ReadFull(c, make([]byte, packetSize)); err != nil {
			t.Errorf("beside a host that opens connects and is silent: %v", err)
		}
	})
}
