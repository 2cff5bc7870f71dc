package overview

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/overview/feed"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// serversAge is how old the list of the global servers may be, because each look reads the store.
const serversAge = 5 * time.Second

// Config holds the parts of one leadership term that the service needs.
type Config struct {
	// Context ends with the term.
	Context context.Context
	State   *state.State
	// Dial returns the tunnel to a region.
	Dial func(region string) (*grpc.ClientConn, error)
	// Info describes this server, with its alarms.
	Info func() *nusav1.InfoResponse
	// Servers returns all global servers.
	Servers func(context.Context) ([]*nusav1.GlobalServer, error)
	// Banned reports whether a region is banned.
	Banned func(region string) bool
}

// Term has the streams of one leadership term.
type Term struct {
	cfg  Config
	hub  *feed.Hub
	jobs *jobs
	// servers are those that were read last. The hub calls read from one goroutine at a time.
	servers   []*nusav1.GlobalServer
	serversAt time.Duration
}

// NewTerm returns the streams of a term: none.
func NewTerm(cfg Config) *Term {
	t := &Term{cfg: cfg, jobs: &jobs{st: cfg.State, broken: map[state.JobKey][]breach{}}}
	t.hub = feed.New(feed.Config{
		Context: cfg.Context, Ended: state.RPCErrors.Err(state.ErrNotActive), Clock: cfg.State.Clock,
		Read: t.read, Jobs: t.jobs, Upstream: t.upstream, CheckRegion: t.checkRegion,
		Topology: func() *topology.View {
			cfg.State.Lock()
			defer cfg.State.Unlock()
			return cfg.State.TopologyView()
		},
	})
	return t
}

// checkRegion returns an error for an unknown region.
func (t *Term) checkRegion(name string) error {
	t.cfg.State.Lock()
	defer t.cfg.State.Unlock()
	if t.cfg.State.Regions[name] == nil {
		return rpcerr.NotFound(rpcerr.KindRegion, name, "region "+name+" does not exist: `nusa region list` shows the regions")
	}
	return nil
}

// upstream opens the stream of a region's nodes.
func (t *Term) upstream(ctx context.Context, region string) (feed.Upstream, error) {
	conn, err := t.cfg.Dial(region)
	if err != nil {
		return nil, err
	}
	return nusav1.NewOverviewClient(conn).Watch(ctx, feed.Request(region))
}

// read reads the present state.
func (t *Term) read(ctx context.Context, _ bool) (out feed.State, err error) {
	now := t.cfg.State.Clock()
	if t.servers == nil || now-t.serversAt >= serversAge {
		servers, err := t.cfg.Servers(ctx)
		if err != nil && t.servers == nil {
			return out, state.RPCErrors.Err(err)
		}
		if err == nil {
			t.servers, t.serversAt = servers, now
		}
	}
	out.Head = &nusav1.OverviewHead{Info: t.cfg.Info(), Now: timestamppb.Now()}
	for _, s := range t.servers {
		if s.GetActive() {
			s = proto.CloneOf(s)
			s.Store = t.cfg.State.Usage()
		}
		out.Head.Servers = append(out.Head.Servers, s)
	}
	out.Regions, out.Due = t.regions()
	out.Due = append(out.Due, t.jobs.due(now)...)
	return out, nil
}

// Server is the Overview service of a global server.
type Server struct {
	nusav1.UnimplementedOverviewServer
	// Current returns the present term, or nil if this server is not active.
	Current func() *Term
}

// Watch implements nusav1.OverviewServer.
func (s *Server) Watch(req *nusav1.WatchOverviewRequest, stream grpc.ServerStreamingServer[nusav1.OverviewUpdate]) error {
	t := s.Current()
	if t == nil {
		return state.RPCErrors.Err(state.ErrNotActive)
	}
	return t.hub.Watch(stream.Context(), req, stream.Send)
}
