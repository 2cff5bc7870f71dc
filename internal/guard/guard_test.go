package guard

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn, 4096)} }

func (p *pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.conns) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns the client's end of a new connection.
func (p *pipes) dial() net.Conn {
	c, s := net.Pipe()
	p.conns <- s
	return c
}

// serveAll reads every accepted connection until it ends. A connection that has sent "ok" at its
// end counts as served.
func serveAll(lis net.Listener) (wait func() (served int)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	served := 0
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer c.Close()
				b, _ := io.ReadAll(c)
				if len(b) >= 2 && string(b[len(b)-2:]) == "ok" {
					mu.Lock()
					served++
					mu.Unlock()
				}
			}()
		}
	}()
	return func() int { wg.Wait(); return served }
}

// greet reads the greeting of a connection: one byte.
func greet(c net.Conn) (net.Conn, error) {
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// closedAfter returns after which time the server has closed a connection. 0: it has not.
func closedAfter(c net.Conn) time.Duration {
	begin := time.Now()
	_ = c.SetReadDeadline(begin.Add(time.Hour))
	_, err := c.Read(make([]byte, 1))
	if err != io.EOF && err != io.ErrClosedPipe {
		return 0
	}
	return time.Since(begin)
}

// TestConnectionWithoutARequestIsClosed: silent connections, and those that send slowly, are closed
// after Limit. One that has made a request stays.
func TestConnectionWithoutARequestIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := newPipes()
		wait := serveAll(Requests(lis, Most, time.Second))
		silent, slow, good := lis.dial(), lis.dial(), lis.dial()
		go func() {
			for _, err := slow.Write([]byte("G")); err == nil; _, err = slow.Write([]byte("a")) {
				time.Sleep(time.Second)
			}
		}()
		if _, err := good.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if d := closedAfter(silent); d != Limit {
			t.Errorf("a silent connection is closed after %s", d)
		}
		if d := closedAfter(slow); d > time.Second {
			t.Errorf("a slow connection is closed %s later", d)
		}
		time.Sleep(time.Hour)
		if _, err := good.Write([]byte("ok")); err != nil {
			t.Errorf("a connection with a request: %v", err)
		}
		good.Close()
		lis.Close()
		if n := wait(); n != 1 {
			t.Errorf("%d connections are served", n)
		}
	})
}

// TestSilentConnectionsAreBounded: of many silent connections only the newest stay, and one that
// makes a request is served.
func TestSilentConnectionsAreBounded(t *testing.T) {
	for name, bound := range map[string]func(net.Listener) net.Listener{
		"requests": func(l net.Listener) net.Listener { return Requests(l, Most, time.Second) },
		"greeted":  func(l net.Listener) net.Listener { return Greeted(l, Most, greet) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := newPipes()
				bounded := bound(lis)
				wait := serveAll(bounded)
				var silent []net.Conn
				for range 2000 {
					silent = append(silent, lis.dial())
				}
				synctest.Wait()
				good := lis.dial()
				if _, err := good.Write([]byte("GET / HTTP/1.1\r\n\r\nok")); err != nil {
					t.Fatal(err)
				}
				good.Close()
				open := slices.DeleteFunc(slices.Clone(silent), func(c net.Conn) bool {
					_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
					_, err := c.Read(make([]byte, 1))
					return err == io.EOF
				})
				if len(open) > Most || len(open) < Most-1 {
					t.Errorf("%d of 2000 silent connections are open, at most %d", len(open), Most)
				}
				bounded.Close()
				for _, c := range silent {
					c.Close()
				}
				if n := wait(); n != 1 {
					t.Errorf("%d connections are served", n)
				}
			})
		})
	}
}

// TestOpenConnectionsAreBounded: one connection more closes the oldest.
func TestOpenConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := newPipes()
		wait := serveAll(Open(lis, 2))
		first, second, third := lis.dial(), lis.dial(), lis.dial()
		if d := closedAfter(first); d != 0 {
			t.Errorf("the oldest is closed after %s", d)
		}
		for _, c := range []net.Conn{second, third} {
			if _, err := c.Write([]byte("ok")); err != nil {
				t.Error(err)
			}
			c.Close()
		}
		lis.Close()
		if n := wait(); n != 2 {
			t.Errorf("%d are served", n)
		}
	})
}
