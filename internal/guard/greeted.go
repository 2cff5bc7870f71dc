package guard

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Greeted returns a listener that accepts a connection only after greet has returned the
// connection that is to be used. greet may wait for bytes of the peer: it runs in a goroutine of
// its own, and the connection is closed after Limit, or when more than most greetings are in
// progress. greet closes the connection if it returns an error.
func Greeted(lis net.Listener, most int, greet func(net.Conn) (net.Conn, error)) net.Listener {
	l := &greeted{Listener: lis, waiting: Waiting{Most: most}, greet: greet, ready: make(chan net.Conn), failed: make(chan struct{}), done: make(chan struct{})}
	l.wg.Add(1)
	go l.run()
	return l
}

type greeted struct {
	net.Listener
	waiting Waiting
	greet   func(net.Conn) (net.Conn, error)
	ready   chan net.Conn
	// failed is closed when the listener has failed with err.
	failed chan struct{}
	err    error
	done   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

// run accepts connections until the listener fails.
func (l *greeted) run() {
	defer l.wg.Done()
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !temporary(err) {
				l.err = err
				close(l.failed)
				return
			}
			time.Sleep(5 * time.Millisecond) // for example no free file descriptor
			continue
		}
		l.wg.Add(1)
		go l.receive(raw)
	}
}

// temporary reports whether a listener may accept again after an error.
func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// receive greets a connection and passes it to Accept.
func (l *greeted) receive(raw net.Conn) {
	defer l.wg.Done()
	leave := l.waiting.Enter(raw)
	defer leave()
	late := time.AfterFunc(Limit, func() { _ = raw.Close() })
	conn, err := l.greet(raw)
	if !late.Stop() && err == nil {
		_ = conn.Close()
		return
	}
	if err != nil {
		return
	}
	select {
	case l.ready <- conn:
	case <-l.done:
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (l *greeted) Accept() (net.Conn, error) {
	select {
	case conn := <-l.ready:
		return conn, nil
	case <-l.failed:
		return nil, l.err
	}
}

// Close implements net.Listener. It closes the connections whose greeting is in progress.
func (l *greeted) Close() error {
	err := l.Listener.Close()
	l.once.Do(func() {
		close(l.done)
		l.waiting.closeAll()
	})
	l.wg.Wait()
	return err
}
