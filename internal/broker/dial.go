package broker

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/webhook"
)

// dialer opens one connection, by a policy. The clients of the brokers wait for the other side without
// a context. So the connection is closed if ctx ends before release.
type dialer struct {
	ctx    context.Context
	policy *webhook.Policy

	mu       sync.Mutex
	conn     net.Conn
	stop     func() bool
	released bool
	err      error // of the latest Dial
}

// Dial opens the connection. It implements the interfaces of both clients. The deadline holds for the
// handshake.
func (d *dialer) Dial(network, addr string) (net.Conn, error) {
	conn, err := d.policy.Dialer(handshake).DialContext(d.ctx, network, addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if err != nil {
		return nil, err
	}
	d.conn = conn
	if !d.released {
		d.stop = context.AfterFunc(d.ctx, func() { _ = conn.Close() })
	}
	return conn, conn.SetDeadline(time.Now().Add(handshake))
}

// release ends the binding of the connection to ctx.
func (d *dialer) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.released = true
	if d.stop != nil {
		d.stop()
	}
}

// cause returns why no connection was opened, or err. A client may hide that.
func (d *dialer) cause(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	return err
}

// close closes the connection at once, so that whatever writes or reads there ends.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = d.conn.Close()
	}
}
