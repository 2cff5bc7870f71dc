package wan

import (
	"container/heap"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	// maxQueued and maxQueuedBytes bound the datagrams of one socket that are in flight,
	// and their bytes. Further datagrams are dropped, as a router would do.
	maxQueued      = 4096
	maxQueuedBytes = 4 << 20
	// maxFlows bounds the flows whose initiator is remembered.
	maxFlows = 1 << 14
)

// flow is a pair of datagram sockets, given by their ports. The lower port is first.
type flow struct{ low, high uint16 }

// packetConn delays the datagrams that it sends to other regions.
type packetConn struct {
	net.PacketConn // inner
	wan            *WAN
	region         string
	port           uint16
	release        func()

	mu      sync.Mutex
	queue   datagrams
	bytes   int
	serial  uint64
	sending bool
	wake    chan struct{} // gets a message when an earlier datagram was queued
	once    sync.Once
	closed  chan struct{}
}

func newPacketConn(w *WAN, region string, port uint16, inner net.PacketConn, release func()) *packetConn {
	return &packetConn{PacketConn: inner, wan: w, region: region, port: port, release: release,
		wake: make(chan struct{}, 1), closed: make(chan struct{})}
}

// WriteTo sends a datagram at once if its port is unknown or is in the same region.
// Otherwise the datagram arrives after half a round trip, or is lost. The error is
// ErrNoRoute if the two regions have no round trip.
func (c *packetConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
	}
	path, delay, fate, err := c.wan.route(c.region, c.port, addr)
	switch {
	case err != nil:
		return 0, fmt.Errorf("send to %s: %w", addr, err)
	case fate == undelayed:
		return c.PacketConn.WriteTo(b, addr)
	case fate == delayed:
		c.enqueue(&datagram{data: append([]byte(nil), b...), addr: addr, path: path, due: time.Now().Add(delay)})
	}
	return len(b), nil
}

// fate says what happens to a datagram.
type fate int

const (
	undelayed fate = iota
	delayed
	lost
)

// route decides the fate of a datagram, and returns its path and delay. The round trip is
// that of the initiator's region, so that a response completes the round trip of its
// request.
func (w *WAN) route(region string, port uint16, addr net.Addr) (pair, time.Duration, fate, error) {
	toPort := addrPort(addr)
	w.mu.Lock()
	defer w.mu.Unlock()
	to, known := w.packets[toPort]
	path := pair{region, to}
	if !known || to == region {
		return path, 0, undelayed, nil
	}
	key := flow{min(port, toPort), max(port, toPort)}
	first, seen := w.flows[key]
	if !seen {
		first = port
		if len(w.flows) < maxFlows {
			w.flows[key] = port
		}
	}
	counted := path
	if first != port {
		counted = pair{to, region}
	}
	rtt, err := w.rttLocked(counted.from, counted.to)
	if err != nil {
		return path, 0, lost, err
	}
	if w.cut[path] || w.loss[path] > 0 && w.rnd.Float64() < w.loss[path] {
		return path, 0, lost, nil
	}
	if first != port {
		return path, rtt - rtt/2, delayed, nil
	}
	return path, rtt / 2, delayed, nil
}

func addrPort(addr net.Addr) uint16 {
	if udp, ok := addr.(*net.UDPAddr); ok {
		return uint16(udp.Port)
	}
	return portOf(addr.String())
}

// enqueue queues a datagram. If the queue is full, the datagram is dropped.
func (c *packetConn) enqueue(d *datagram) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) >= maxQueued || c.bytes+len(d.data) > maxQueuedBytes {
		return
	}
	c.serial++
	d.serial = c.serial
	c.bytes += len(d.data)
	heap.Push(&c.queue, d)
	switch {
	case !c.sending:
		c.sending = c.wan.start(c.send)
	case c.queue[0] == d:
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// send delivers the queued datagrams when they are due. It runs while there are queued
// datagrams.
func (c *packetConn) send() {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.sending = false
			c.mu.Unlock()
			return
		}
		next := c.queue[0]
		c.mu.Unlock()
		now := next.due
		if !c.wan.ticks.sleep(next.due, c.wake, c.wan.done) {
			if !c.resume() {
				return
			}
			now = time.Now()
		}
		for _, d := range c.arrived(now) {
			if !c.wan.isCut(d.path) {
				_, _ = c.PacketConn.WriteTo(d.data, d.addr) // an error is a lost datagram
			}
		}
	}
}

// resume reports whether send continues after its sleep was interrupted. If the socket or
// the WAN is closed, resume drops the queue.
func (c *packetConn) resume() bool {
	select {
	case <-c.closed:
	case <-c.wan.done:
	default:
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue, c.bytes, c.sending = nil, 0, false
	return false
}

func (c *packetConn) arrived(now time.Time) []*datagram {
	c.mu.Lock()
	defer c.mu.Unlock()
	var due []*datagram
	for len(c.queue) > 0 && !c.queue[0].due.After(now) {
		d := heap.Pop(&c.queue).(*datagram)
		c.bytes -= len(d.data)
		due = append(due, d)
	}
	return due
}

// Close closes the socket. Datagrams in flight are lost.
func (c *packetConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.closed)
		select {
		case c.wake <- struct{}{}:
		default:
		}
		c.wan.forgetFlows(c.port)
		c.release()
		err = c.PacketConn.Close()
	})
	return err
}

// start starts a goroutine of the WAN, unless the WAN is closed.
func (w *WAN) start(run func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closedLocked() {
		return false
	}
	w.running.Go(run)
	return true
}

func (w *WAN) isCut(p pair) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[p]
}

func (w *WAN) forgetFlows(port uint16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.flows {
		if f.low == port || f.high == port {
			delete(w.flows, f)
		}
	}
}

// datagram is a datagram in flight.
type datagram struct {
	data   []byte
	addr   net.Addr
	path   pair
	due    time.Time
	serial uint64
}

// datagrams is a heap with the earliest datagram on top. Datagrams with equal times are in
// the order of sending.
type datagrams []*datagram

func (q datagrams) Len() int { return len(q) }
func (q datagrams) Less(i, j int) bool {
	if q[i].due.Equal(q[j].due) {
		return q[i].serial < q[j].serial
	}
	return q[i].due.Before(q[j].due)
}
func (q datagrams) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *datagrams) Push(x any)   { *q = append(*q, x.(*datagram)) }
func (q *datagrams) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return d
}
