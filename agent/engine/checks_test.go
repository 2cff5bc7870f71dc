package engine

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestProbeResults checks the result of each kind of check for many responses.
func TestProbeResults(t *testing.T) {
	answers := map[string]string{
		"/ok":       "HTTP/1.1 204 No Content\r\n\r\n",
		"/ok?q=1":   "HTTP/1.0 200 OK\r\n\r\nbody",
		"/early":    "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"/endless":  "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 1<<20),
		"/moved":    "HTTP/1.1 302 Found\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n",
		"/ill":      "HTTP/1.1 500 X\r\n\r\n\n no database\nreally\n",
		"/huge":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"/nonsense": "hello\r\n\r\n",
		"/nothing":  "",
		"/silent":   "…",
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				if answer := answers[req.RequestURI]; answer != "…" {
					_, _ = conn.Write([]byte(answer))
					return
				}
				_, _ = conn.Read(make([]byte, 1)) // until the caller closes the connection
			})
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	var d net.Dialer
	port := l.Addr().(*net.TCPAddr).Port
	n := Reach{Dial: func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }, OwnAddress: func() string { return "" }}
	probe := func(k *nusav1.Check, n Reach, p int) health.Result {
		t.Helper()
		o := &order{ports: []driver.Port{{Label: "http", Host: p}}}
		k.Timeout = durationpb.New(500 * time.Millisecond)
		out, err := o.readCheck(&nusav1.Task{Driver: "process", Check: k}, nil, n)
		if err != nil {
			t.Fatal(err)
		}
		return out.run(t.Context(), driver.ID{}, time.Now())
	}
	for path, want := range map[string]string{
		"/ok": "status 204", "/ok?q=1": "status 200", "/early": "status 200", "/endless": "status 200",
		"/moved": "! status 302 to /ok", "/ill": "! status 500: no database", "/nonsense": `! malformed HTTP response "hello"`,
		"/huge": "! the connection was closed without a response", "/nothing": "! the connection was closed without a response", "/silent": "! no answer within 500ms",
	} {
		r := probe(&nusav1.Check{Kind: &nusav1.Check_Http{Http: &nusav1.HTTPCheck{Port: "http", Path: path}}}, n, port)
		if got := strings.TrimPrefix(map[bool]string{false: "! "}[r.OK]+r.Message, ""); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	tcp := &nusav1.Check{Kind: &nusav1.Check_Tcp{Tcp: &nusav1.TCPCheck{Port: "http"}}}
	if r := probe(tcp, n, port); !r.OK || r.Message != "connected" {
		t.Errorf("tcp: %+v", r)
	}
	free := freeport.Reserve(t, 1)
	if r := probe(tcp, n, free); r.OK || r.Message != "connection refused" {
		t.Errorf("tcp to a closed port: %+v", r)
	}
	// The task listens only at the node's own address, and then only on another machine.
	own := n
	own.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", strings.Replace(addr, fmt.Sprintf("192.0.2.1:%d", free), l.Addr().String(), 1))
	}
	own.OwnAddress = func() string { return "192.0.2.1" }
	if r := probe(tcp, own, free); !r.OK {
		t.Errorf("at the node's own address: %+v", r)
	}
	own.RemoteHosts = map[string]string{"process": "127.0.0.1"}
	if r := probe(tcp, own, free); r.OK {
		t.Errorf("elsewhere: %+v", r)
	}
}

// TestConnectionMustStayOpen: a connection through an engine's port counts only if
// it is not closed at once.
func TestConnectionMustStayOpen(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(net.Conn)
		ok    bool
	}{
		"closes": {func(c net.Conn) { c.Close() }, false},
		"speaks": {func(c net.Conn) { _, _ = c.Write([]byte("220 hello\r\n")); c.Close() }, true},
		"waits":  {func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); c.Close() }, true},
	} {
		here, there := net.Pipe()
		served := make(chan struct{})
		go func() { defer close(served); c.serve(there) }()
		if err := staysConnected(t.Context(), here); (err == nil) != c.ok {
			t.Errorf("one that %s: %v", name, err)
		}
		here.Close()
		<-served
	}
}

// TestConcurrentChecksAreBounded: the number of concurrent checks is limited. A waiting
// check becomes late, but does not fail. All checks end with the agent.
func TestConcurrentChecksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, lates, fails atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		c := newChecks(ctx, NewMetrics(), func(_ driver.ID, s health.State) {
			if s.Last.Late > 10*time.Second {
				lates.Add(1)
			}
			if s.Phase != health.Healthy || s.Failed > 0 {
				fails.Add(1)
			}
		})
		k := &check{Policy: health.Policy{What: "x", Interval: 10 * time.Second, Timeout: 30 * time.Second, Deadline: time.Minute, Failures: 1},
			probe: func(ctx context.Context, _ driver.ID) (string, error) {
				n := now.Add(1)
				for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
				}
				defer now.Add(-1)
				select {
				case <-time.After(20 * time.Second): // slow, but faster than the timeout
					return "slow", nil
				case <-ctx.Done():
					return "", ctx.Err()
				}
			}}
		for i := range 4 * maxNetworkChecks {
			c.begin(driver.ID{Alloc: fmt.Sprint(i)}, k, health.Begin(time.Now()), 0)
		}
		time.Sleep(5 * time.Minute)
		if most.Load() != maxNetworkChecks || lates.Load() == 0 || fails.Load() != 0 {
			t.Errorf("%d at a time, %d reported as late, %d as failed", most.Load(), lates.Load(), fails.Load())
		}
		c.end(driver.ID{Alloc: "0"})
		if _, ok := c.state(driver.ID{Alloc: "0"}); ok {
			t.Error("it goes on after its end")
		}
		cancel()
		c.close()
		if now.Load() != 0 {
			t.Errorf("%d checks are under way after the end", now.Load())
		}
	})
}

// BenchmarkCheck measures the cost of a check without its probe.
func BenchmarkCheck(b *testing.B) {
	c := newChecks(b.Context(), NewMetrics(), func(driver.ID, health.State) {})
	defer c.close()
	k := &check{Policy: health.Policy{What: "x", Interval: time.Hour, Timeout: time.Second, Deadline: time.Minute, Failures: 3},
		probe: func(context.Context, driver.ID) (string, error) { return "status 200", nil }}
	c.begin(driver.ID{Alloc: "a"}, k, health.Begin(time.Now()), time.Hour)
	x := c.runs[driver.ID{Alloc: "a"}]
	b.ReportAllocs()
	for b.Loop() {
		c.fire(x)
	}
}
