package regional

import (
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// services returns the public API of the server.
func (s *server) services() *api.Server {
	return &api.Server{
		Name: s.cfg.Name, Version: s.cfg.Version, Region: s.cfg.Region,
		Address: func() string { return s.addrs.GRPC }, Net: s.cfg.Net,
		NodeLease: s.cfg.NodeLease, Clock: s.cfg.Clock, State: s.fsm,
		Master: func() *api.Master {
			if l := s.standing.leader(); l != nil {
				return l.api
			}
			return nil
		},
		KnownMaster: s.master, Servers: s.servers, Federation: s.federation,
		History: s.history.Open, Stopping: s.stopping, Streams: &s.streams,
	}
}

// apiMaster is the term as the API sees it.
func (l *leader) apiMaster() *api.Master {
	return &api.Master{
		Done: l.ctx.Done(), Term: l.term, Cluster: l.cluster, Events: l.events, Log: l.seq,
		Planner: planner{l}, Reporter: l.reporter, Nodes: l.agents, Peers: l.prober, MatrixWatches: &l.prober.Watches,
		Groups: l.groups, Specs: &wire.SpecCache{}, Connected: l.uplink.Connected,
		Report: func() *nusav1.RegionReport { return l.reporter.Report(nil) },
	}
}

// planner is the scheduler as the API sees it.
type planner struct{ l *leader }

func (p planner) Input(view *state.View) sched.Input { return p.l.input(view) }

func (p planner) Latest() (*sched.Plan, int64) { return p.l.sched.planned() }

func (p planner) Pending(key state.GroupKey) []wire.CountedReason { return p.l.sched.pending(key) }
