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

// send carries out one probe of the plan. What may block gets a goroutine.
func (p *Prober) send(ctx context.Context, conn net.PacketConn, dials *sync.WaitGroup, d outgoing) {
	if !d.dials {
		p.sendUDP(ctx, conn, d.Peer, d.addr) // the loop goes on to watch it
		return
	}
	dials.Go(func() {
		if d.Method == TCP {
			p.probeTCP(ctx, d.Peer, d.addr)
		} else {
			p.sendUDP(ctx, conn, d.Peer, d.addr)
			p.poke() // so that the loop watches it
		}
		p.dialled()
	})
}

// dialled gives the place of a probe that may have blocked to one that is held.
func (p *Prober) dialled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocking--
	if p.plan.Waiting() > 0 {
		p.poke()
	}
}

// begin notes a probe as under way from now; nil if the peer has gone.
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

// finish settles a probe that is still under way.
func (p *Prober) finish(o *inFlightProbe, s Sample, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight[o.ticket] == o {
		p.record(o, s, now)
		p.hurry()
	}
}

// hurry wakes the loop if it would otherwise look too late, or may not have
// seen what is new. mu is held.
func (p *Prober) hurry() {
	if len(p.dirty) > 0 || p.wakeAt.IsZero() || len(p.plan.queue) > 0 && p.plan.queue[0].next.At.Before(p.wakeAt) {
		p.poke()
	}
}

// sendUDP sends a request; the answer comes to read, its absence to step.
func (p *Prober) sendUDP(ctx context.Context, conn net.PacketConn, peer, addr string) {
	to, err := p.cfg.Resolve(ctx, addr)
	o := p.begin(peer, addr, UDP)
	if o == nil {
		return
	}
	if err == nil {
		request := packet{kind: kindRequest, from: p.id, session: o.session, sequence: o.sequence}
		_, err = conn.WriteTo(request.encode(signing(p.cfg.Keys), peer), to)
		p.sentLate(o, time.Now())
	}
	if err != nil && ctx.Err() == nil {
		p.cfg.Logger.Debug("probe not sent", "peer", peer, "address", addr, "error", err)
		p.finish(o, Sample{Lost: true, LostOn: Outbound}, time.Now())
	}
}

// sentLate charges a probe with the time that it took to be sent.
func (p *Prober) sentLate(o *inFlightProbe, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.late = now.Sub(o.sent)
}

// probeTCP measures a connect, and then has it proven whose it was.
func (p *Prober) probeTCP(ctx context.Context, peer, addr string) {
	timed, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	o := p.begin(peer, addr, TCP)
	if o == nil {
		return
	}
	p.poke()
	conn, err := p.cfg.Net.Dial(timed, addr)
	now := time.Now()
	s := Sample{RTT: now.Sub(o.sent), Delay: p.lateness(now)}
	if err == nil {
		err = p.prove(timed, conn, peer, o.sequence)
		conn.Close()
	}
	unproven := errors.Is(err, errUnproven)
	if unproven && len(p.cfg.Keys) == 0 {
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

// errUnproven: who accepted a connect did not prove to be the region.
var errUnproven = errors.New("the connect was accepted by somebody without the key of the region")

// prove has the other end of a connect answer a packet as over UDP.
func (p *Prober) prove(ctx context.Context, conn net.Conn, peer string, sequence uint64) error {
	until, _ := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetDeadline(until); err != nil {
		return err
	}
	request := packet{kind: kindRequest, from: p.id, session: p.session, sequence: sequence}
	b := make([]byte, packetSize)
	if _, err := conn.Write(request.encode(signing(p.cfg.Keys), peer)); err != nil {
		return fmt.Errorf("%w: %w", errUnproven, err)
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return fmt.Errorf("%w: %w", errUnproven, err)
	}
	answer, _, err := decode(b, p.cfg.Keys, peer)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnproven, err)
	}
	if answer.kind != kindAnswer || answer.from != p.id || answer.session != p.session || answer.sequence != sequence {
		return fmt.Errorf("%w: it answers another question", errUnproven)
	}
	return nil
}

// lateness is by how much the loop should have been woken before now.
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

// read takes answers.
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
			p.cfg.Logger.Debug("answer ignored", "from", from, "error", err)
		}
	}
}

var errNotInFlight = errors.New("not an answer to a probe under way")

// receiveAnswer settles the probe that a packet answers. Each is answered once: what is
// sent again, late or made up finds no probe under way. Only such packets are
// worth the work of checking the code. It had waited to be read.
func (p *Prober) receiveAnswer(b []byte, now time.Time, waited time.Duration) error {
	t, ok := ticketOf(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.inFlight[t]
	if !ok || o == nil || o.method != UDP {
		return errNotInFlight
	}
	answer, _, err := decode(b, p.cfg.Keys, o.peer.Name)
	if err != nil {
		return err
	}
	if answer.kind != kindAnswer || answer.from != p.id {
		return errNotInFlight
	}
	rtt, delay := now.Sub(o.sent), max(p.latenessLocked(now), answer.responderDelay)
	if p.stamped {
		// The wait is known and taken off; how late the loop was is no matter.
		rtt -= min(waited, rtt)
		o.delay, delay = 0, max(waited, answer.responderDelay)
	}
	if rtt < p.cfg.Timeout {
		p.record(o, Sample{RTT: rtt, Delay: delay}, now)
	} else {
		p.record(o, Sample{Lost: true, Delay: delay}, now) // it came, but nobody could wait for it
	}
	if known := o.peer; answer.session == known.session && answer.sequence > known.acknowledgedAt {
		known.acknowledged, known.acknowledgedAt = answer.arrivals, answer.sequence
		known.window.LearnDirections(answer.session, answer.sequence, answer.arrivals)
	}
	p.hurry()
	return nil
}
