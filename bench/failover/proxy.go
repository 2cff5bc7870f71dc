package failover

import (
	"context"
	"net"
	"sync"

	"golang.org/x/sync/errgroup"
)

// proxy forwards TCP connections to one address. While the proxy is cut it forwards
// nothing and closes no connection, like a wide-area link that loses every packet.
type proxy struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	isCut bool
	// mended is closed when the cut ends.
	mended chan struct{}
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &proxy{listener: l, target: target, mended: make(chan struct{})}, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = true
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCut {
		p.isCut = false
		close(p.mended)
		p.mended = make(chan struct{})
	}
}

// pass waits until the proxy is not cut.
func (p *proxy) pass(ctx context.Context) error {
	for {
		p.mu.Lock()
		isCut, mended := p.isCut, p.mended
		p.mu.Unlock()
		if !isCut {
			return nil
		}
		select {
		case <-mended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run serves connections until ctx ends.
func (p *proxy) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { p.listener.Close() })()
	for {
		c, err := p.listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			return g.Wait()
		}
		g.Go(func() error {
			p.serve(ctx, c)
			return nil
		})
	}
}

// serve forwards one connection in both directions until one end closes it.
func (p *proxy) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	if p.pass(ctx) != nil {
		return
	}
	var d net.Dialer
	up, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		return // the region sees the end of its connection and tries again
	}
	defer up.Close()
	// When one direction ends, both connections are closed, so the other direction ends
	// too.
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { c.Close(); up.Close() })()
	g.Go(func() error { return p.forward(ctx, up, c) })
	g.Go(func() error { return p.forward(ctx, c, up) })
	_ = g.Wait()
}

// forward copies bytes until a connection fails or is closed. The error is never nil.
func (p *proxy) forward(ctx context.Context, to, from net.Conn) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			// A cut proxy does not forward the end of a connection either: the other
			// end sees it only after the cut.
			_ = p.pass(ctx)
			return err
		}
		if err := p.pass(ctx); err != nil {
			return err
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
	}
}
