package probe

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// loop sends due probes, detects lost probes, and reports changed edges, until ctx ends.
func (p *Prober) loop(ctx context.Context, conn net.PacketConn, dials *sync.WaitGroup) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
			p.noteDelay(time.Now())
		}
		due, again := p.step(time.Now())
		for _, d := range due {
			p.send(ctx, conn, dials, d)
		}
		for _, e := range p.changes(time.Now()) {
			if p.cfg.Changed != nil {
				p.cfg.Changed(e)
			}
		}
		timer.Reset(p.sleep(again))
	}
}

// outgoing is a due probe with its address.
type outgoing struct {
	Probe
	addr string
	// blocks: sending may block, so the probe counts towards maxBlocking.
	blocks bool
}

// step records the lost probes. It returns the due probes, and the time at which the loop
// has to run again.
func (p *Prober) step(now time.Time) (due []outgoing, again time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakeAt = time.Time{} // the loop is awake
	if now.Sub(p.weighedAt) >= weighEvery {
		p.updateWeights(now)
	}
	if !now.Before(p.grace) {
		for _, o := range p.inFlight {
			if o.method == UDP && now.Sub(o.sent) >= p.cfg.Timeout {
				p.record(o, Sample{Lost: true}, now)
			}
		}
	}
	p.plan.Resume(maxBlocking - p.blocking)
	_, again = p.plan.PopDue(now, p.rnd.Float64, func(d Probe) bool {
		s := p.outgoing(d)
		if s.blocks && p.blocking >= maxBlocking {
			return false
		}
		if s.blocks {
			p.blocking++
		}
		due = append(due, s)
		return true
	})
	if waiting := p.plan.Waiting(); waiting > 0 && now.Sub(p.waitLoggedAt) >= waitLogEvery {
		p.waitLoggedAt = now
		p.cfg.Logger.Warn("probes wait: too many connects and name look-ups in flight", "waiting", waiting, "limit", maxBlocking)
	}
	return due, again
}

// outgoing returns a probe with its address. Sending may block if the probe uses TCP or
// needs a name look-up. p.mu is held.
func (p *Prober) outgoing(d Probe) outgoing {
	addresses := p.peers[d.Peer].Addresses // the plan and p.peers have the same peers
	addr := addresses[d.Address%len(addresses)]
	_, err := netip.ParseAddrPort(addr)
	return outgoing{d, addr, d.Method == TCP || err != nil}
}

// sleep returns how long the loop may sleep: until the plan's next probe, the next
// time-out of a probe, or the next measurement of the loop's own delay. It stores the time
// of the wake-up, from which noteDelay computes how late the loop woke up.
func (p *Prober) sleep(again time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if again.IsZero() {
		again = now.Add(time.Hour) // no work until wake gets a message
	}
	for _, o := range p.inFlight {
		look, watched := o.nextWake(now)
		if !watched || p.stamped && o.method == UDP {
			look = o.sent.Add(p.cfg.Timeout)
			if look.Before(p.grace) {
				look = p.grace
			}
		}
		if look.Before(again) {
			again = look
		}
	}
	p.wakeAt = again
	return max(0, again.Sub(now))
}

// nextWake returns when the loop should wake up next because the response to the probe may
// arrive. It returns false if the loop need not wake up for the probe any more.
func (o *inFlightProbe) nextWake(now time.Time) (time.Time, bool) {
	gone := now.Sub(o.sent)
	first := o.sent.Add(o.expect - time.Duration(watchEarly*float64(o.expect)))
	next := now.Add(max(watchTick, time.Duration(watchShare*float64(gone))))
	switch {
	case now.Before(first):
		return first, true
	case gone < watchFor:
		return next, true
	}
	return time.Time{}, false
}

// noteDelay notes in the probes in flight how late the loop woke up.
func (p *Prober) noteDelay(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakeAt.IsZero() {
		return
	}
	late := now.Sub(p.wakeAt)
	if late > veryLate {
		p.grace = now.Add(answerGrace)
	}
	for _, o := range p.inFlight {
		o.delay = max(o.delay, late)
	}
}

// changes returns the edges that have changed noticeably since they were last reported.
func (p *Prober) changes(now time.Time) []topology.Edge {
	p.mu.Lock()
	defer p.mu.Unlock()
	var changed []topology.Edge
	for _, known := range p.dirty {
		known.dirty = false
		if known.gone {
			continue
		}
		e := p.edge(known.Name, known, now)
		if noticeable(known.reported, e) {
			if known.reported.State != topology.Unknown {
				known.moved = now
			}
			known.reported = e
			changed = append(changed, e)
		}
	}
	p.dirty = p.dirty[:0]
	slices.SortFunc(changed, func(a, b topology.Edge) int { return strings.Compare(a.To, b.To) })
	return changed
}

func noticeable(was, is topology.Edge) bool {
	moved := (is.P50 - was.P50).Abs()
	return was.State != is.State || moved > changeFloor && float64(moved) > changeShare*float64(was.P50)
}

// record ends a probe. It adds the sample to the window of the peer, and updates the plan
// and the network coordinate. p.mu is held.
func (p *Prober) record(o *inFlightProbe, s Sample, now time.Time) {
	delete(p.inFlight, o.ticket)
	known := o.peer
	if known.gone {
		return // the peer was removed meanwhile
	}
	s.At, s.Method, s.Session, s.Sequence = o.sent, o.method, o.session, o.sequence
	s.Delay = max(s.Delay, o.late, o.delay)
	if s.Lost && o.session == known.session && o.sequence < known.acknowledgedAt {
		s.LostOn = known.acknowledged.direction(known.acknowledgedAt - o.sequence)
	}
	known.window.Add(s)
	if !known.dirty && noticeable(known.reported, p.edge(known.Name, known, now)) {
		known.dirty = true
		p.dirty = append(p.dirty, known)
	}
	if s.Lost {
		p.plan.Lost(known.Name, o.method, now, p.rnd.Float64)
		return
	}
	p.plan.Answered(known.Name, o.method, now, p.rnd.Float64)
	if s.delayed() {
		p.plan.SetAside(known.Name, now, p.rnd.Float64)
	}
	if known.Coordinate != nil && !s.delayed() {
		if err := p.tracker.Update(known.Name, *known.Coordinate, s.RTT); err != nil {
			p.cfg.Logger.Debug("network coordinate not updated", "peer", known.Name, "error", err)
		}
	}
}
