package regional

import (
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/master"
	"github.com/nusa-scheduler/nusa/regional/trail"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// services returns the gRPC services of the API.
func (s *server) services() *api.Server {
	out := &api.Server{
		Name: s.cfg.Name, Version: s.cfg.Version, Region: s.cfg.Region,
		Address: func() string { return s.addrs.GRPC }, HTTP: s.serve.HTTPAt, Net: s.cfg.Net, Identity: s.cfg.Identity,
		NodeLease: s.cfg.NodeLease, Clock: s.cfg.Clock, State: s.fsm, Log: s.tap,
		Master: s.leadership.apiMaster, KnownMaster: s.master, Servers: s.servers, Federation: s.federation, Rights: s.rights.get,
		History: s.history.Open, Stopping: s.stopping, Streams: &s.streams,
		Trail: &trail.Trail{Retain: s.cfg.AuditRetention, Forwards: len(s.cfg.Global) > 0},
	}
	out.Enroll = &enroll.Server{
		Source: s.cfg.Identity, Region: s.cfg.Region.GetName(), Store: out.Documents, Issuer: s.issuer, Now: time.Now, Log: s.cfg.Logger,
	}
	return out
}

// issuer returns the authority of this server, which signs the certificates of agents.
func (s *server) issuer() (*enroll.Issuer, error) {
	a, err := enroll.ReadAuthority(s.cfg.Identity.Dir())
	if err != nil {
		return nil, err
	}
	chain, err := s.cfg.Identity.Chain()
	if err != nil {
		return nil, err
	}
	return &enroll.Issuer{Authority: a, Above: pki.Vouched(chain), Lives: s.cfg.Lives}, nil
}

// apiMaster returns what the API sees of a term.
func apiMaster(m *master.Master, watches *api.GroupWatches) *api.Master {
	return &api.Master{
		Done: m.Context().Done(), Term: m.Term, Cluster: m.Cluster, Events: m.Events, Log: m.Log,
		Planner: m.Planner, Reporter: m.Reporter, Nodes: m.Agents, Peers: m.Prober, MatrixWatches: &m.Prober.Watches,
		Groups: watches, Specs: &wire.SpecCache{}, Uplink: m.Uplink, Repairer: m.Repairer,
		Report: func() *nusav1.RegionReport { return m.Reporter.Report(nil) },
	}
}
