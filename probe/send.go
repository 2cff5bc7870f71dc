package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
)

// send carries out one probe of the plan. What may block (TCP, name look-ups)
// gets a goroutine; if too many are under way the probe is left out.
func (p *Prober) send(ctx context.Context, conn net.PacketConn, dials *errgroup.Group, d Probe) {
	p.mu.Lock()
	known := p.peers[d.Peer]
	if known == nil {
		p.mu.Unlock()
		return
	}
	addr := known.Addresses[d.Address%len(known.Addresses)]
	p.mu.Unlock()

	if _, err := netip.ParseAddrPort(addr); err == nil && d.Method == UDP {
		p.sendUDP(ctx, conn, d.Peer, addr)
		return
	}
	started := dials.TryGo(func() error {
		if d.Method == TCP {
			p.probeTCP(ctx, d.Peer, addr)
		} else {
			p.sendUDP(ctx, conn, d.Peer, addr)
		}
		return nil
	})
	if !started {
		p.cfg.Logger.Warn("probe left out: too many under way", "peer", d.Peer, "limit", maxDials)
	}
}

// begin notes a probe as under way from now.
func (p *Prober) begin(peer, method string) (sequence uint64, o *outstanding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sequence++
	o = &outstanding{peer: peer, method: method, sent: time.Now()}
	p.out[p.sequence] = o
	return p.sequence, o
}

// finish settles a probe that is still under way.
func (p *Prober) finish(sequence uint64, s Sample, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out[sequence] != nil {
		p.settle(sequence, s, now)
		p.poke()
	}
}

// sendUDP sends a request; the answer comes to read, its absence to step.
func (p *Prober) sendUDP(ctx context.Context, conn net.PacketConn, peer, addr string) {
	to, err := p.cfg.Resolve(ctx, addr)
	sequence, _ := p.begin(peer, UDP)
	if err == nil {
		request := packet{kind: kindRequest, session: p.session, sequence: sequence}.encode(p.cfg.Key)
		_, err = conn.WriteTo(request, to)
	}
	if err != nil && ctx.Err() == nil {
		p.cfg.Logger.Debug("probe not sent", "peer", peer, "address", addr, "error", err)
		p.finish(sequence, Sample{Lost: true}, time.Now())
		return
	}
	p.poke() // so that the loop watches this probe
}

// probeTCP measures a connect.
func (p *Prober) probeTCP(ctx context.Context, peer, addr string) {
	timed, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	sequence, o := p.begin(peer, TCP)
	p.poke()
	conn, err := p.cfg.Net.Dial(timed, addr)
	now := time.Now()
	if err == nil {
		conn.Close()
		p.finish(sequence, Sample{RTT: now.Sub(o.sent), Delay: p.lateness(now)}, now)
		return
	}
	if ctx.Err() == nil {
		p.cfg.Logger.Debug("connect probe failed", "peer", peer, "address", addr, "error", err)
		p.finish(sequence, Sample{Lost: true}, now)
	}
}

// lateness is by how much the loop should have been woken before now.
func (p *Prober) lateness(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakeAt.IsZero() {
		return 0
	}
	return max(0, now.Sub(p.wakeAt))
}

// read takes answers.
func (p *Prober) read(ctx context.Context, conn net.PacketConn) error {
	buf := make([]byte, 2*packetSize)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("receive: %w", err)
		}
		now := time.Now()
		answer, err := decode(buf[:n], p.cfg.Key)
		if err != nil || answer.kind != kindAnswer || answer.session != p.session {
			p.cfg.Logger.Debug("answer ignored", "from", from, "error", err)
			continue
		}
		late := p.lateness(now)
		p.mu.Lock()
		if o := p.out[answer.sequence]; o != nil && o.method == UDP {
			p.settle(answer.sequence, Sample{RTT: now.Sub(o.sent), Delay: max(late, answer.held)}, now)
			p.poke()
		}
		p.mu.Unlock()
	}
}
