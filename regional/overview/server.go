package overview

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/overview/feed"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// Term has the streams of one term of the master.
type Term struct {
	server *api.Server
	master *api.Master
	hub    *feed.Hub
	// Jobs learns which groups change.
	Jobs *Jobs
}

// NewTerm returns the streams of a term: none. ctx ends with the term.
func NewTerm(ctx context.Context, s *api.Server, m *api.Master, jobs *Jobs) *Term {
	t := &Term{server: s, master: m, Jobs: jobs}
	t.hub = feed.New(feed.Config{
		Context: ctx, Ended: raftlog.StatusError(raftlog.ErrNoMaster), Clock: s.Clock, Region: s.Region.GetName(),
		Read: t.read, Topology: m.Peers.View, Jobs: &jobSource{term: t},
	})
	return t
}

// read reads the present state.
func (t *Term) read(_ context.Context, nodes bool) (out feed.State, err error) {
	now := time.Now()
	out.Head = &nusav1.OverviewHead{Info: api.Info(t.server), Now: timestamppb.New(now)}
	if silence, received := t.server.Federation.Silence(); received && !t.master.Uplink.Connected() {
		out.Head.Alone = durationpb.New(silence)
	}
	for _, m := range api.AllRegions(t.server, t.master, nil) {
		r := feed.Region(m, now)
		r.Island = m.GetState() == nusav1.RegionState_REGION_STATE_ISLAND
		out.Regions = append(out.Regions, r)
	}
	if nodes {
		out.Nodes = nodesOf(t.server, t.master, now)
	}
	return out, nil
}

// Server is the Overview service of a regional server.
type Server struct {
	nusav1.UnimplementedOverviewServer
	// Current returns the present term, or nil if this server is not the master.
	Current func() *Term
}

// Watch implements nusav1.OverviewServer.
func (s *Server) Watch(req *nusav1.WatchOverviewRequest, stream grpc.ServerStreamingServer[nusav1.OverviewUpdate]) error {
	t := s.Current()
	if t == nil {
		return raftlog.StatusError(raftlog.ErrNoMaster)
	}
	return t.hub.Watch(stream.Context(), req, stream.Send)
}
