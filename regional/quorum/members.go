package quorum

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/voters"
)

// MaintainMembers changes the Raft configuration to match the living servers. It checks
// after every change in gossip and at regular intervals, until ctx ends. Only the leader
// may run it.
func (g *Group) MaintainMembers(ctx context.Context) error {
	began := time.Now()
	tick := time.NewTicker(max(g.cfg.ReplaceAfter/4, 100*time.Millisecond))
	defer tick.Stop()
	reported := map[string]bool{}
	for {
		changed := g.cfg.Gossip.Changed()
		view := g.view(began)
		for _, p := range view.Peers {
			if p.Alive && p.Cluster != "" && p.Foreign(view.Cluster) && !reported[p.ID] {
				reported[p.ID] = true
				g.cfg.Logger.Warn("a server of another cluster gossips here: give it an empty data directory, or another region's name", "server", p.ID, "cluster", p.Cluster)
			}
		}
		for _, c := range voters.Plan(view) {
			if err := g.applyChange(c); err != nil {
				// The next round makes a new plan from the configuration at that time.
				g.cfg.Logger.Warn("membership change failed", "change", c.String(), "error", err)
				break
			}
			g.cfg.Logger.Info("membership changed", "change", c.String())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		}
	}
}

func (g *Group) view(began time.Time) voters.View {
	now := time.Now()
	v := voters.View{
		Self: g.cfg.ID, Cluster: g.cfg.Cluster(), Unseen: now.Sub(began),
		ReplaceAfter: g.cfg.ReplaceAfter, DeadAfter: g.cfg.DeadAfter,
	}
	for _, s := range g.GetConfiguration().Configuration().Servers {
		v.Servers = append(v.Servers, voters.Server{ID: string(s.ID), Addr: string(s.Address)})
	}
	for _, m := range g.cfg.Gossip.Members() {
		p := voters.Peer{ID: m.ID, Addr: m.Raft, Alive: m.Alive, Cluster: m.Cluster, Bootstrapped: m.Bootstrapped}
		if !m.Alive {
			p.Silent = now.Sub(m.Since)
		}
		v.Peers = append(v.Peers, p)
	}
	return v
}

func (g *Group) applyChange(c voters.Change) error {
	const wait = 5 * time.Second
	if c.Op == voters.Remove {
		return g.RemoveServer(raft.ServerID(c.ID), 0, wait).Error()
	}
	return g.AddVoter(raft.ServerID(c.ID), raft.ServerAddress(c.Addr), 0, wait).Error()
}
