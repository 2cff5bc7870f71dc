package world

import "time"

// network connects processes by streams. A stream delivers messages in order, or breaks and loses
// the messages in flight. A cut stops one direction between two hosts.
type network struct {
	w     *world
	cuts  [maxHosts][maxHosts]bool
	ends  []*end // open ends with waiting messages, for flush
	count int
	// If spike is above 0, one of spike messages is late by seconds, on average.
	spike int
}

const maxHosts = 64

// keepalive is the silence after which an end gives its connection up.
const keepalive = 15 * time.Second

// end is one side of a connection.
type end struct {
	p    *proc
	life int
	peer *end
	open bool
	// recv handles a message. closed handles the end of the connection. Both run in the process.
	recv   func(m any)
	closed func()
	// in are the messages on their way to this end.
	in     []message
	last   int64
	queued bool // the end is in network.ends
	arrive func()
	// lastSeen is the true time of the latest delivery.
	lastSeen int64
}

type message struct {
	at int64
	m  any
}

// closing is the last message of a connection.
type closing struct{}

// dial opens a connection. The first message from the server shows that the connection is open.
func (n *network) dial(from, to *proc) *end {
	n.count++
	a, b := &end{p: from, life: from.life, open: true}, &end{p: to, open: true}
	a.peer, b.peer = b, a
	a.arrive, b.arrive = a.pump, b.pump
	a.lastSeen, b.lastSeen = n.w.now, n.w.now
	from.ends = append(from.ends, a)
	n.w.in(n.delay(from.h, to.h), func() {
		switch {
		case n.cuts[from.h.num][to.h.num] || to.h.suspended():
			n.w.in(3*time.Second, func() { a.fail() })
		case !to.up || to.accept == nil:
			n.w.in(n.delay(from.h, to.h), func() { a.fail() })
		default:
			n.w.in(keepalive, func() { // the process may end before it accepts the connection
				if b.life == 0 {
					a.fail()
				}
			})
			to.then(to.life, func() {
				if !to.up {
					a.fail()
					return
				}
				b.life = to.life
				to.ends = append(to.ends, b)
				to.accept(b)
				b.pump()
			})
		}
	})
	return a
}

// disturbed is called before an event that may end the leadership of a healthy leader.
func (n *network) disturbed() {
	for _, r := range n.w.regions {
		r.raft.disturbed()
	}
}

func (n *network) delay(a, b *host) time.Duration {
	least, most := 500*time.Microsecond, 2*time.Millisecond
	if a.name[0] != b.name[0] || a.name[1] != b.name[1] { // the hosts are in different places
		least, most = 10*time.Millisecond, 60*time.Millisecond
	}
	if n.spike > 0 && n.w.chance(n.spike) {
		return n.w.between(time.Second, 4*time.Second)
	}
	return n.w.between(least, most)
}

// send sends a message. If the connection is broken, the message is lost.
func (e *end) send(m any) {
	to := e.peer
	if !e.open {
		return
	}
	n := &e.p.h.w.net
	to.last = max(to.last+1, n.w.now+int64(n.delay(e.p.h, to.p.h)))
	to.in = append(to.in, message{to.last, m})
	if len(to.in) == 1 {
		n.w.at(to.last, to.arrive)
	}
}

// close ends the connection after the messages that were sent.
func (e *end) close() {
	if e.open {
		e.send(closing{})
		e.drop()
	}
}

// reset ends the connection. Messages in flight from this end may be lost.
func (e *end) reset() {
	if e.open {
		to := e.peer
		if k := len(to.in); k > 0 {
			to.in = to.in[:e.p.h.w.rng.IntN(k+1)]
			if len(to.in) == 0 {
				to.in = nil
			}
		}
		e.close()
	}
}

// drop removes the connection at this end.
func (e *end) drop() {
	e.open = false
	for i, o := range e.p.ends {
		if o == e {
			last := len(e.p.ends) - 1
			e.p.ends[i] = e.p.ends[last]
			e.p.ends = e.p.ends[:last]
			break
		}
	}
}

// fail ends the connection at this end, and tells the process.
func (e *end) fail() {
	if !e.open {
		return
	}
	e.drop()
	if e.closed != nil {
		e.p.then(e.life, e.closed)
	}
}

// die ends the connection because the process has ended. If the host has lost its power, it sends
// nothing, and the other end notices that by its keepalive.
func (e *end) die(power bool) {
	if !e.open {
		return
	}
	e.open = false
	e.in = nil
	if power {
		to := e.peer
		if to.open {
			e.p.h.w.in(e.p.h.w.between(time.Second, keepalive), to.fail)
		}
		return
	}
	e.open = true
	e.send(closing{})
	e.open = false
}

// pump delivers the messages that have arrived.
func (e *end) pump() {
	w := e.p.h.w
	for len(e.in) > 0 && e.open {
		first := e.in[0]
		switch {
		case e.life == 0: // not accepted yet
			return
		case e.p.life != e.life || !e.p.up:
			e.in = nil
			return
		case e.p.stalled() || w.net.cuts[e.peer.p.h.num][e.p.h.num]:
			if !e.queued {
				e.queued = true
				w.net.ends = append(w.net.ends, e)
				e.giveUp()
			}
			return
		case first.at > w.now:
			w.at(first.at, e.arrive)
			return
		}
		if len(e.in) == 1 {
			e.in[0].m, e.in = nil, e.in[:0]
		} else {
			e.in = e.in[1:]
		}
		e.lastSeen = w.now
		if _, last := first.m.(closing); last {
			e.fail()
			return
		}
		e.recv(first.m)
	}
}

// giveUp breaks a connection that stays blocked for longer than the keepalive. Each end notices
// that at a different time.
func (e *end) giveUp() {
	w := e.p.h.w
	since := e.lastSeen
	w.in(w.between(keepalive/2, keepalive), func() {
		if e.open && e.lastSeen == since {
			e.fail()
			w.in(w.between(0, keepalive), e.peer.fail)
		}
	})
}

// flush delivers the messages that waited for the end of a cut, or for a process to resume.
func (n *network) flush() {
	ends := n.ends
	n.ends = nil
	for _, e := range ends {
		e.queued = false
		if e.open && n.w.chance(8) {
			e.fail() // the connection has broken meanwhile, and its messages are lost
			n.w.in(n.w.between(0, keepalive), e.peer.fail)
			continue
		}
		e.pump()
	}
}

// cut stops or restores the direction from one host to another.
func (n *network) cut(from, to *host, on bool) {
	if on {
		n.disturbed()
	}
	n.cuts[from.num][to.num] = on
	if !on {
		n.flush()
	}
}
