package emulate

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// Traffic counts the bytes that connections carry, without the headers of TCP and IP.
type Traffic struct {
	down, up atomic.Int64
}

// Bytes returns the bytes received and sent so far.
func (t *Traffic) Bytes() (down, up int64) { return t.down.Load(), t.up.Load() }

// over returns the network n with a Dial that counts the bytes of its connections.
func (t *Traffic) over(n network.Net) network.Net {
	dial := n.Dial
	n.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &counted{c, t}, nil
	}
	return n
}

type counted struct {
	net.Conn
	t *Traffic
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.t.down.Add(int64(n))
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.t.up.Add(int64(n))
	return n, err
}
