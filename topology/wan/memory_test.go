package wan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// memory is a network in memory, for virtual time. It has pipes and queues of datagrams,
// and no delays.
type memory struct {
	mu        sync.Mutex
	next      uint16
	listeners map[uint16]*memoryListener
	packets   map[uint16]*memoryPackets
}

func newMemory() *memory {
	return &memory{next: 40000, listeners: map[uint16]*memoryListener{}, packets: map[uint16]*memoryPackets{}}
}

func (m *memory) net() network.Net {
	return network.Net{Listen: m.listen, Dial: m.dial, ListenPacket: m.listenPacket}
}

func (m *memory) port(addr string) uint16 {
	if p := portOf(addr); p != 0 {
		return p
	}
	m.next++
	return m.next
}

type memoryListener struct {
	m     *memory
	port  uint16
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (m *memory) listen(_ context.Context, addr string) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &memoryListener{m: m, port: m.port(addr), conns: make(chan net.Conn, 16), done: make(chan struct{})}
	if m.listeners[l.port] != nil {
		return nil, syscall.EADDRINUSE
	}
	m.listeners[l.port] = l
	return l, nil
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(l.port)}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.m.mu.Lock()
		defer l.m.mu.Unlock()
		delete(l.m.listeners, l.port)
	})
	return nil
}

func (m *memory) dial(_ context.Context, addr string) (net.Conn, error) {
	m.mu.Lock()
	l := m.listeners[portOf(addr)]
	m.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, syscall.ECONNREFUSED
	}
}

type memoryDatagram struct {
	data []byte
	from net.Addr
}

type memoryPackets struct {
	net.PacketConn // nil: other methods are not used
	m              *memory
	port           uint16
	in             chan memoryDatagram
	done           chan struct{}
	once           sync.Once
}

func (m *memory) listenPacket(_ context.Context, addr string) (net.PacketConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &memoryPackets{m: m, port: m.port(addr), in: make(chan memoryDatagram, 2*maxQueued), done: make(chan struct{})}
	if m.packets[c.port] != nil {
		return nil, syscall.EADDRINUSE
	}
	m.packets[c.port] = c
	return c, nil
}

func (c *memoryPackets) LocalAddr() net.Addr {
	return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(c.port)}
}

func (c *memoryPackets) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case d := <-c.in:
		return copy(b, d.data), d.from, nil
	case <-c.done:
		return 0, nil, net.ErrClosed
	}
}

func (c *memoryPackets) WriteTo(b []byte, addr net.Addr) (int, error) {
	select {
	case <-c.done:
		return 0, net.ErrClosed
	default:
	}
	c.m.mu.Lock()
	to := c.m.packets[addrPort(addr)]
	c.m.mu.Unlock()
	if to == nil {
		return len(b), nil
	}
	select {
	case to.in <- memoryDatagram{append([]byte(nil), b...), c.LocalAddr()}:
		return len(b), nil
	default:
		return 0, errors.New("receiver is full")
	}
}

func (c *memoryPackets) SetDeadline(time.Time) error { return errors.ErrUnsupported }

func (c *memoryPackets) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		delete(c.m.packets, c.port)
	})
	return nil
}
