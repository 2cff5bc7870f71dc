package feed

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/overview"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// MaxStreams bounds the streams of a server.
	MaxStreams = 256
	// costPause is the least time between two computations, in durations of the latest one. So
	// they take at most a tenth of a processor.
	costPause = 9
	// matrixPause is the same for the matrix.
	matrixPause = 19
)

// State is the present state of a tier. The receiver may change the messages, except for the
// messages, maps and lists inside them.
type State struct {
	Head    *nusav1.OverviewHead
	Regions []*nusav1.OverviewRegion
	Due     []*nusav1.OverviewDue
	Errors  []*nusav1.PartialError
	// Nodes are the nodes of the server's own region.
	Nodes []*nusav1.OverviewNode
}

// Config says where a Hub reads.
type Config struct {
	// Context ends the streams, with the error Ended.
	Context context.Context
	Ended   error
	// Clock returns the time since a fixed moment.
	Clock func() time.Duration
	// Region is the own region of a regional server. "": the global tier.
	Region string
	// Read reads the present state. nodes: some stream wants the nodes of the own region.
	Read func(ctx context.Context, nodes bool) (State, error)
	// Topology returns the present view of the round trips.
	Topology func() *topology.View
	// Jobs reads the jobs.
	Jobs JobSource
	// Upstream opens the stream of another region's nodes. It is nil at a regional server.
	// CheckRegion returns an error for an unknown region.
	Upstream    func(ctx context.Context, region string) (Upstream, error)
	CheckRegion func(region string) error
}

// Hub holds the streams of a server, and the state that they share.
type Hub struct {
	cfg Config
	// lock guards all fields below. It is a channel, so that a stream that ends need not wait.
	lock chan struct{}

	streams, edges, nodes int

	state  *shared
	readAt time.Duration
	cost   time.Duration

	matrix     *overview.Matrix
	view       *topology.View
	relays     overview.Relays
	matrixAt   time.Duration
	matrixCost time.Duration

	jobs  *jobs
	feeds map[string]*nodeFeed
}

// shared is the state that all streams see, before each leaves out what its caller may not read.
type shared struct {
	head *overview.Entry
	// brief is the head for callers who may not read the topology.
	brief                       *overview.Entry
	regions, due, errors, nodes overview.Section
	matrix                      *overview.Matrix
}

// New returns a Hub without streams.
func New(cfg Config) *Hub {
	return &Hub{cfg: cfg, lock: make(chan struct{}, 1), jobs: newJobs(cfg.Jobs, cfg.Clock), feeds: map[string]*nodeFeed{}}
}

// acquire takes the lock.
func (h *Hub) acquire(ctx context.Context) error {
	select {
	case h.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-h.cfg.Context.Done():
		return h.cfg.Ended
	}
}

func (h *Hub) release() { <-h.lock }

// open counts a new stream.
func (h *Hub) open(ctx context.Context, r *request) error {
	if err := h.acquire(ctx); err != nil {
		return err
	}
	defer h.release()
	if h.streams >= MaxStreams {
		return status.Errorf(codes.ResourceExhausted, "the server has %d streams of the overview: end another one, for example a page in a browser", MaxStreams)
	}
	h.streams++
	if r.edges {
		h.edges++
	}
	if r.nodesOf != "" && r.nodesOf == h.cfg.Region {
		h.nodes++
	}
	return nil
}

// close forgets a stream. After the last one it drops what the streams shared.
func (h *Hub) close(r *request) {
	h.lock <- struct{}{}
	defer h.release()
	h.streams--
	if r.edges {
		h.edges--
	}
	if r.nodesOf != "" && r.nodesOf == h.cfg.Region {
		h.nodes--
	}
	if h.edges == 0 {
		h.matrix, h.view, h.relays, h.matrixCost = nil, nil, overview.Relays{}, 0
		if h.state != nil {
			h.state.matrix = nil
		}
	}
	if h.streams == 0 {
		h.state, h.cost = nil, 0
		h.jobs.stop()
	}
}

// present returns the shared state. It is at most age old, unless it costs so much that it is
// computed less often.
func (h *Hub) present(ctx context.Context, age time.Duration, edges, nodes bool) (shared, error) {
	now := h.cfg.Clock()
	missing := h.state == nil || edges && h.matrix == nil || nodes && h.state.nodes == nil
	if !missing && now-h.readAt < max(age, costPause*h.cost) {
		return *h.state, nil
	}
	state, err := h.cfg.Read(ctx, h.nodes > 0)
	if err != nil {
		return shared{}, err
	}
	next := h.publish(state, now)
	if h.edges > 0 {
		h.updateMatrix(now)
		next.matrix = h.matrix
	}
	h.state, h.readAt = next, now
	h.cost = h.cfg.Clock() - now
	return *next, nil
}

// publish turns the state that was read into what the streams see.
func (h *Hub) publish(state State, now time.Duration) *shared {
	was := h.state
	if was == nil {
		was = &shared{}
	}
	next := &shared{
		head: overview.KeepEntry(was.head, headEntry(state.Head, true), now), brief: overview.KeepEntry(was.brief, headEntry(state.Head, false), now),
	}
	var regions, due, errs, nodes overview.Section
	for _, r := range state.Regions {
		regions = append(regions, regionEntry(r))
	}
	for _, d := range state.Due {
		due = append(due, dueEntry(d))
	}
	for _, e := range state.Errors {
		errs = append(errs, errorEntry(e))
	}
	for _, n := range state.Nodes {
		nodes = append(nodes, nodeEntry(n))
	}
	for _, s := range []*overview.Section{&regions, &due, &errs, &nodes} {
		s.Sort()
	}
	next.regions = regions.Keep(was.regions, now)
	next.due, next.errors = due.Keep(was.due, now), errs.Keep(was.errors, now)
	next.nodes = nodes.Keep(was.nodes, now)
	if next.nodes == nil && h.nodes > 0 {
		next.nodes = overview.Section{}
	}
	return next
}

// updateMatrix computes the matrix if that is due and the view has changed.
func (h *Hub) updateMatrix(now time.Duration) {
	if h.matrix != nil && now-h.matrixAt < matrixPause*h.matrixCost {
		return
	}
	view := h.cfg.Topology()
	if view == h.view && h.matrix != nil {
		return
	}
	h.view = view
	h.matrix = overview.KeepMatrix(h.matrix, view.Names(), func(i int, into []overview.Cell) { cells(view, &h.relays, i, into) })
	h.relays.Look(h.matrix)
	h.matrixAt, h.matrixCost = now, h.cfg.Clock()-now
}

// errNotOwn is the error of nodes of another region at a regional server.
func errNotOwn(own, region string) error {
	return invalid("nodes_of", fmt.Sprintf("this is a server of region %s, and it knows the nodes of that region only, not of %q", own, region))
}
