package machine

import "time"

// Network connects processes by streams. A stream delivers messages in order, or breaks and loses
// the messages in flight. A cut stops one direction between two hosts.
type Network struct {
	e *Engine
	// Cuts says, by the numbers of two hosts, which directions are cut.
	Cuts  [maxHosts][maxHosts]bool
	ends  []*End // open ends with waiting messages, for flush
	count int
	// If Spike is above 0, one of Spike messages is late by seconds, on average.
	Spike int
	// Disturbed is called before an event that may end the leadership of a healthy leader.
	Disturbed func()
}

const maxHosts = 64

// keepalive is the silence after which an end gives its connection up.
const keepalive = 15 * time.Second

// End is one side of a connection.
type End struct {
	p    *Proc
	life int
	peer *End
	Open bool
	// Recv handles a message. Closed handles the end of the connection. Both run in the process.
	Recv   func(m any)
	Closed func()
	// in are the messages on their way to this end.
	in     []message
	last   int64
	queued bool // the end is in Network.ends
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

// Dial opens a connection. The first message from the server shows that the connection is open.
func (n *Network) Dial(from, to *Proc) *End {
	n.count++
	a, b := &End{p: from, life: from.Life, Open: true}, &End{p: to, Open: true}
	a.peer, b.peer = b, a
	a.arrive, b.arrive = a.pump, b.pump
	a.lastSeen, b.lastSeen = n.e.Now, n.e.Now
	from.ends = append(from.ends, a)
	n.e.In(n.delay(from.H, to.H), func() {
		switch {
		case n.Cuts[from.H.Num][to.H.Num] || to.H.Suspended():
			n.e.In(3*time.Second, func() { a.fail() })
		case !to.Up || to.Accept == nil:
			n.e.In(n.delay(from.H, to.H), func() { a.fail() })
		default:
			n.e.In(keepalive, func() { // the process may end before it accepts the connection
				if b.life == 0 {
					a.fail()
				}
			})
			to.Then(to.Life, func() {
				if !to.Up {
					a.fail()
					return
				}
				b.life = to.Life
				to.ends = append(to.ends, b)
				to.Accept(b)
				b.pump()
			})
		}
	})
	return a
}

func (n *Network) delay(a, b *Host) time.Duration {
	least, most := 500*time.Microsecond, 2*time.Millisecond
	if a.Name[0] != b.Name[0] || a.Name[1] != b.Name[1] { // the hosts are in different places
		least, most = 10*time.Millisecond, 60*time.Millisecond
	}
	if n.Spike > 0 && n.e.Chance(n.Spike) {
		return n.e.Between(time.Second, 4*time.Second)
	}
	return n.e.Between(least, most)
}

// Send sends a message. If the connection is broken, the message is lost.
func (e *End) Send(m any) {
	to := e.peer
	if !e.Open {
		return
	}
	n := &e.p.H.E.Net
	to.last = max(to.last+1, n.e.Now+int64(n.delay(e.p.H, to.p.H)))
	to.in = append(to.in, message{to.last, m})
	if len(to.in) == 1 {
		n.e.At(to.last, to.arrive)
	}
}

// Close ends the connection after the messages that were sent.
func (e *End) Close() {
	if e.Open {
		e.Send(closing{})
		e.drop()
	}
}

// Reset ends the connection. Messages in flight from this end may be lost.
func (e *End) Reset() {
	if e.Open {
		to := e.peer
		if k := len(to.in); k > 0 {
			to.in = to.in[:e.p.H.E.Rng.IntN(k+1)]
			if len(to.in) == 0 {
				to.in = nil
			}
		}
		e.Close()
	}
}

// drop removes the connection at this end.
func (e *End) drop() {
	e.Open = false
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
func (e *End) fail() {
	if !e.Open {
		return
	}
	e.drop()
	if e.Closed != nil {
		e.p.Then(e.life, e.Closed)
	}
}

// die ends the connection because the process has ended. If the host has lost its power, it sends
// nothing, and the other end notices that by its keepalive.
func (e *End) die(power bool) {
	if !e.Open {
		return
	}
	e.Open = false
	e.in = nil
	if power {
		to := e.peer
		if to.Open {
			e.p.H.E.In(e.p.H.E.Between(time.Second, keepalive), to.fail)
		}
		return
	}
	e.Open = true
	e.Send(closing{})
	e.Open = false
}

// pump delivers the messages that have arrived.
func (e *End) pump() {
	w := e.p.H.E
	for len(e.in) > 0 && e.Open {
		first := e.in[0]
		switch {
		case e.life == 0: // not accepted yet
			return
		case e.p.Life != e.life || !e.p.Up:
			e.in = nil
			return
		case e.p.Stalled() || w.Net.Cuts[e.peer.p.H.Num][e.p.H.Num]:
			if !e.queued {
				e.queued = true
				w.Net.ends = append(w.Net.ends, e)
				e.giveUp()
			}
			return
		case first.at > w.Now:
			w.At(first.at, e.arrive)
			return
		}
		if len(e.in) == 1 {
			e.in[0].m, e.in = nil, e.in[:0]
		} else {
			e.in = e.in[1:]
		}
		e.lastSeen = w.Now
		if _, last := first.m.(closing); last {
			e.fail()
			return
		}
		e.Recv(first.m)
	}
}

// giveUp breaks a connection that stays blocked for longer than the keepalive. Each end notices
// that at a different time.
func (e *End) giveUp() {
	w := e.p.H.E
	since := e.lastSeen
	w.In(w.Between(keepalive/2, keepalive), func() {
		if e.Open && e.lastSeen == since {
			e.fail()
			w.In(w.Between(0, keepalive), e.peer.fail)
		}
	})
}

// Flush delivers the messages that waited for the end of a cut, or for a process to resume.
func (n *Network) Flush() {
	ends := n.ends
	n.ends = nil
	for _, e := range ends {
		e.queued = false
		if e.Open && n.e.Chance(8) {
			e.fail() // the connection has broken meanwhile, and its messages are lost
			n.e.In(n.e.Between(0, keepalive), e.peer.fail)
			continue
		}
		e.pump()
	}
}

// Cut stops or restores the direction from one host to another.
func (n *Network) Cut(from, to *Host, on bool) {
	if on {
		n.Disturbed()
	}
	n.Cuts[from.Num][to.Num] = on
	if !on {
		n.Flush()
	}
}
