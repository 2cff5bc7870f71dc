package feed

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/overview"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// reopenAfter is how long a feed waits before it opens the stream of a region again.
const reopenAfter = 2 * time.Second

// Upstream is the stream of a region: nusav1.Overview_WatchClient.
type Upstream interface {
	Recv() (*nusav1.OverviewUpdate, error)
}

// nodeFeed has the nodes of another region, for all streams that show them.
type nodeFeed struct {
	region string
	// streams is guarded by the lock of the hub.
	streams int
	stop    context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	nodes   map[string]*overview.Entry
	sorted  overview.Section // nil: nodes has changed
	problem *nusav1.PartialError
}

// nodesOf returns the feed of a region. The lock of the hub is not held.
func (h *Hub) nodesOf(region string) *nodeFeed {
	h.lock <- struct{}{}
	defer h.release()
	f := h.feeds[region]
	if f == nil {
		ctx, stop := context.WithCancel(h.cfg.Context)
		f = &nodeFeed{region: region, stop: stop, done: make(chan struct{}), nodes: map[string]*overview.Entry{}}
		h.feeds[region] = f
		go func() {
			defer close(f.done)
			f.run(ctx, h.cfg.Upstream)
		}()
	}
	f.streams++
	return f
}

// dropNodes gives a feed back. The last stream ends it.
func (h *Hub) dropNodes(f *nodeFeed) {
	h.lock <- struct{}{}
	f.streams--
	last := f.streams == 0
	if last {
		delete(h.feeds, f.region)
	}
	h.release()
	if last {
		f.stop()
		<-f.done
	}
}

// run reads the region's stream, and opens it again when it ends, until ctx ends.
func (f *nodeFeed) run(ctx context.Context, open func(context.Context, string) (Upstream, error)) {
	for ctx.Err() == nil {
		err := f.read(ctx, open)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		f.problem = &nusav1.PartialError{Region: f.region, Message: "its nodes are those last known: " + status.Convert(err).Message()}
		if len(f.nodes) == 0 {
			f.problem.Message = "its nodes are not known: " + status.Convert(err).Message()
		}
		f.mu.Unlock()
		wait.For(ctx, reopenAfter)
	}
}

// read reads one stream until it ends.
func (f *nodeFeed) read(ctx context.Context, open func(context.Context, string) (Upstream, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := open(ctx, f.region)
	if err != nil {
		return err
	}
	fresh := map[string]*overview.Entry{} // the snapshot while it arrives
	snapshot := true
	for {
		m, err := up.Recv()
		if err != nil {
			return err
		}
		if m.GetReset_() {
			fresh, snapshot = map[string]*overview.Entry{}, true
		}
		if snapshot {
			apply(fresh, m)
			if !m.GetSynced() {
				continue
			}
		}
		f.mu.Lock()
		if snapshot {
			f.nodes, snapshot = fresh, false
		} else {
			apply(f.nodes, m)
		}
		f.sorted, f.problem = nil, nil
		if e := m.GetErrors().GetErrors(); len(e) > 0 {
			f.problem = e[0]
		}
		f.mu.Unlock()
	}
}

// apply applies an update to the nodes.
func apply(nodes map[string]*overview.Entry, m *nusav1.OverviewUpdate) {
	for _, id := range m.GetNodesRemoved() {
		delete(nodes, id)
	}
	for _, n := range m.GetNodes() {
		nodes[n.GetId()] = nodeEntry(n)
	}
}

// present returns the nodes, and why they are not up to date, or nil.
func (f *nodeFeed) present() (overview.Section, *nusav1.PartialError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sorted == nil {
		f.sorted = make(overview.Section, 0, len(f.nodes))
		for _, e := range f.nodes {
			f.sorted = append(f.sorted, e)
		}
		f.sorted.Sort()
	}
	return f.sorted, f.problem
}

// Request returns the request with which a feed opens the stream of a region.
func Request(region string) *nusav1.WatchOverviewRequest {
	return &nusav1.WatchOverviewRequest{NodesOf: region, OnlyNodes: true, Interval: durationpb.New(defaultInterval)}
}
