package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// send sends one due probe. If sending may block, it runs in its own goroutine.
func (p *Prober) send(ctx context.Context, conn net.PacketConn, dials *sync.WaitGroup, d outgoing) {
	if !d.blocks {
		p.sendUDP(ctx, conn, d.Peer, d.addr) // the next step of the loop sees the probe
		return
	}
	dials.Go(func() {
		if d.Method == TCP {
			p.probeTCP(ctx, d.Peer, d.addr)
		} else {
			p.sendUDP(ctx, conn, d.Peer, d.addr)
			p.wakeLoop() // so that the loop sees the probe
		}
		p.releaseBlocking()
	})
}

// releaseBlocking is called after a probe was sent that may have blocked. It makes room
// for the next such probe.
func (p *Prober) releaseBlocking() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocking--
	if p.plan.Waiting() > 0 {
		p.wakeLoop()
	}
}

// begin records that a probe is in flight from now on. It returns nil if the peer was
// removed.
func (p *Prober) begin(name, addr, method string) *inFlightProbe {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.peers[name]
	if known == nil {
		return nil
	}
	o := &inFlightProbe{peer: known, method: method, expect: known.window.latest.RTT}
	if usual := known.reported.P50; usual > 0 {
		o.expect = min(o.expect, usual)
	}
	if method == UDP {
		if known.address != addr {
			known.address, known.session, known.sequence = addr, randomSession(), 0
			known.acknowledged, known.acknowledgedAt = arrivals{}, 0
		}
		known.sequence++
		o.ticket = ticket{known.session, known.sequence}
	} else {
		p.connects++
		o.ticket = ticket{0, p.connects}
	}
	p.inFlight[o.ticket] = o
	p.probes++
	o.sent = time.Now()
	return o
}

// finish records the result of a probe, if the probe is still in flight.
func (p *Prober) finish(o *inFlightProbe, s Sample, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight[o.ticket] == o {
		p.record(o, s, now)
		p.wakeLoopIfNeeded()
	}
}

// wakeLoopIfNeeded wakes the loop if the loop would sleep too long, or may not have seen
// the latest change. p.mu is held.
func (p *Prober) wakeLoopIfNeeded() {
	if len(p.dirty) > 0 || p.wakeAt.IsZero() || len(p.plan.queue) > 0 && p.plan.queue[0].next.At.Before(p.wakeAt) {
		p.wakeLoop()
	}
}

// sendUDP sends a request. read receives the response, and step detects the loss.
func (p *Prober) sendUDP(ctx context.Context, conn net.PacketConn, peer, addr string) {
	to, err := p.cfg.Resolve(ctx, addr)
	o := p.begin(peer, addr, UDP)
	if o == nil {
		return
	}
	if err == nil {
		request := packet{kind: kindRequest, from: p.id, session: o.session, sequence: o.sequence}
		_, err = conn.WriteTo(request.encode(signing(p.keys()), peer), to)
		p.sentLate(o, time.Now())
	}
	if err != nil && ctx.Err() == nil {
		p.cfg.Logger.Debug("probe not sent", "peer", peer, "address", addr, "error", err)
		p.finish(o, Sample{Lost: true, LostOn: Outbound}, time.Now())
	}
}

// sentLate notes how long sending took.
func (p *Prober) sentLate(o *inFlightProbe, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.late = now.Sub(o.sent)
}

// probeTCP measures a connect, and then requests a proof of the responder's identity.
func (p *Prober) probeTCP(ctx context.Context, peer, addr string) {
	timed, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	o := p.begin(peer, addr, TCP)
	if o == nil {
		return
	}
	p.wakeLoop()
	conn, err := p.cfg.Net.Dial(timed, addr)
	now := time.Now()
	s := Sample{RTT: now.Sub(o.sent), Delay: p.lateness(now)}
	if err == nil {
		err = p.prove(timed, conn, peer, o.sequence)
		conn.Close()
	}
	unproven := errors.Is(err, errUnproven)
	if unproven && len(signing(p.keys())) == 0 {
		err = nil
	}
	if err == nil {
		p.mu.Lock()
		o.peer.proven = !unproven
		p.mu.Unlock()
		p.finish(o, s, now)
		return
	}
	if ctx.Err() == nil {
		p.cfg.Logger.Debug("connect probe failed", "peer", peer, "address", addr, "error", err)
		p.finish(o, Sample{Lost: true}, time.Now())
	}
}

// errUnproven means that the host that accepted a connect did not prove the identity of
// the region.
var errUnproven = errors.New("the connect was accepted by a host without the key of the region")

// prove requests a response packet, as over UDP, from the other end of a connect.
func (p *Prober) prove(ctx context.Context, conn net.Conn, peer string, sequence uint64) error {
	until, _ := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetDeadline(until); err != nil {
		return err
	}
	request := packet{kind: kindRequest, from: p.id, session: p.session, sequence: sequence}
	b := make([]byte, packetSize)
	if _, err := conn.Write(request.encode(signing(p.keys()), peer)); err != nil {
		return fmt.Errorf("%w: %w", errUnproven, err)
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return fmt.Errorf("%w: %w", errUnproven, err)
	}
	answer, _, err := decode(b, p.keys(), peer)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnproven, err)
	}
	if answer.kind != kindAnswer || answer.from != p.id || answer.session != p.session || answer.sequence != sequence {
		return fmt.Errorf("%w: its response is to another request", errUnproven)
	}
	return nil
}

// lateness returns how late the loop is: the time since it should have woken up.
func (p *Prober) lateness(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latenessLocked(now)
}

func (p *Prober) latenessLocked(now time.Time) time.Duration {
	if p.wakeAt.IsZero() {
		return 0
	}
	return max(0, now.Sub(p.wakeAt))
}

// read receives responses until ctx ends.
func (p *Prober) read(ctx context.Context, read receive) error {
	buf := make([]byte, 2*packetSize)
	for {
		n, from, waited, err := read(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("receive: %w", err)
		}
		if err := p.receiveAnswer(buf[:n], time.Now(), waited); err != nil {
			p.cfg.Logger.Debug("response ignored", "from", from, "error", err)
		}
	}
}

var errNotInFlight = errors.New("not the response to a probe in flight")

// receiveAnswer records the result of the probe to which a packet is the response. A
// repeated, late or forged packet finds no probe in flight. The authentication code is
// checked only if there is a probe in flight. waited is how long the packet waited to be
// read.
func (p *Prober) receiveAnswer(b []byte, now time.Time, waited time.Duration) error {
	t, ok := ticketOf(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.inFlight[t]
	if !ok || o == nil || o.method != UDP {
		return errNotInFlight
	}
	answer, _, err := decode(b, p.keys(), o.peer.Name)
	if err != nil {
		return err
	}
	if answer.kind != kindAnswer || answer.from != p.id {
		return errNotInFlight
	}
	rtt, delay := now.Sub(o.sent), max(p.latenessLocked(now), answer.responderDelay)
	if p.stamped {
		// The wait is known and subtracted, so it does not matter how late the loop was.
		rtt -= min(waited, rtt)
		o.delay, delay = 0, max(waited, answer.responderDelay)
	}
	if rtt < p.cfg.Timeout {
		p.record(o, Sample{RTT: rtt, Delay: delay}, now)
	} else {
		p.record(o, Sample{Lost: true, Delay: delay}, now) // the response came after the time-out
	}
	if known := o.peer; answer.session == known.session && answer.sequence > known.acknowledgedAt {
		known.acknowledged, known.acknowledgedAt = answer.arrivals, answer.sequence
		known.window.LearnDirections(answer.session, answer.sequence, answer.arrivals)
	}
	p.wakeLoopIfNeeded()
	return nil
}

// keys returns the present keys.
func (p *Prober) keys() [][]byte { return p.cfg.Ring.or(p.cfg.Keys) }
