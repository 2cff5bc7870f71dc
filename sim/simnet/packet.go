package simnet

import (
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// packetConn sends and receives datagrams.
type packetConn struct {
	n      *Network
	host   *host
	port   int
	cond   *sync.Cond
	closed bool
	// queue is sorted by the field due.
	queue    []datagram
	deadline time.Time
}

type datagram struct {
	due  time.Time
	from *net.UDPAddr
	data []byte
}

func (n *Network) listenPacket(h *host, addr string) (net.PacketConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	port, err := h.bind(addr, func(p int) bool { return h.packets[p] != nil })
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Err: err}
	}
	p := &packetConn{n: n, host: h, port: port, cond: sync.NewCond(&n.mu)}
	h.packets[port] = p
	return p, nil
}

// ReadFrom waits for a datagram. It cuts off what does not fit into the buffer.
func (p *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case p.closed:
			return 0, nil, p.fail("read", net.ErrClosed)
		case past(p.deadline, now):
			return 0, nil, p.fail("read", os.ErrDeadlineExceeded)
		case len(p.queue) > 0 && !now.Before(p.queue[0].due):
			d := p.queue[0]
			p.queue = p.queue[1:]
			return copy(b, d.data), d.from, nil
		}
		wake := p.deadline
		if len(p.queue) > 0 {
			wake = earlier(wake, p.queue[0].due)
		}
		waitUntil(p.cond, wake)
	}
}

// WriteTo never waits. A datagram that cannot arrive is lost.
func (p *packetConn) WriteTo(b []byte, to net.Addr) (int, error) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.closed {
		return 0, p.fail("write", net.ErrClosed)
	}
	if len(b) > maxPacket {
		return 0, p.fail("write", os.NewSyscallError("sendto", syscall.EMSGSIZE))
	}
	ip, port, err := resolve(p.host, to.String())
	if err != nil {
		return 0, p.fail("write", err)
	}
	h := p.n.hosts[ip]
	lost := p.n.rnd.Float64() < p.n.opts.Loss
	if lost || h == nil || !p.n.up(p.host, h) || h.packets[port] == nil || len(h.packets[port].queue) >= packetQueue {
		return len(b), nil
	}
	q := h.packets[port]
	d := datagram{
		due:  time.Now().Add(p.n.opts.Latency(p.host.name, ip)),
		from: &net.UDPAddr{IP: net.ParseIP(p.host.name), Port: p.port},
		data: slices.Clone(b),
	}
	i, _ := slices.BinarySearchFunc(q.queue, d.due, func(e datagram, due time.Time) int {
		if e.due.After(due) {
			return 1
		}
		return -1 // behind the datagrams of the same time
	})
	q.queue = slices.Insert(q.queue, i, d)
	q.cond.Broadcast()
	return len(b), nil
}

func (p *packetConn) Close() error {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.host.packets[p.port] == p {
		delete(p.host.packets, p.port)
	}
	p.closed, p.queue = true, nil
	p.cond.Broadcast()
	return nil
}

func (p *packetConn) LocalAddr() net.Addr {
	return &net.UDPAddr{IP: net.ParseIP(p.host.name), Port: p.port}
}

func (p *packetConn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: p.LocalAddr(), Err: err}
}

// SetDeadline sets the deadline of reads, because writes never wait.
func (p *packetConn) SetDeadline(t time.Time) error { return p.SetReadDeadline(t) }

func (p *packetConn) SetReadDeadline(t time.Time) error {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	p.deadline = t
	p.cond.Broadcast()
	return nil
}

func (p *packetConn) SetWriteDeadline(time.Time) error { return nil }
