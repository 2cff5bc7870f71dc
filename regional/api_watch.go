package regional

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// maxGroupsSent bounds the groups of one message.
	maxGroupsSent = 1000
	// maxGroupsDirty bounds the groups that wait for a slow reader. Each is
	// there once, so only purges in great number can exceed it.
	maxGroupsDirty = 1 << 20
	// maxWatches bounds the watches of groups, since each costs every commit a
	// little.
	maxWatches = 64
	// maxWatchInterval is the longest pause that a watch may ask for.
	maxWatchInterval = time.Minute
)

// groupWatches are the watches of groups on a master. Each keeps only the names
// of what changed; the counts are read when they are sent.
type groupWatches struct {
	mu  sync.Mutex
	all map[*groupWatch]struct{}
}

func newGroupWatches() *groupWatches { return &groupWatches{all: map[*groupWatch]struct{}{}} }

// groupWatch is one of them.
type groupWatch struct {
	namespace, prefix string
	wake              chan struct{} // room for one

	mu    sync.Mutex
	dirty map[state.GroupKey]struct{}
	// slow: more groups changed than are remembered.
	slow bool
}

func (w *groupWatches) add(g *groupWatch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) >= maxWatches {
		return status.Errorf(codes.ResourceExhausted, "%d watches of groups are open: end another one", maxWatches)
	}
	w.all[g] = struct{}{}
	return nil
}

func (w *groupWatches) remove(g *groupWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, g)
}

// changed notes groups for every watch. The committed state has them already.
func (w *groupWatches) changed(groups []state.GroupKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for g := range w.all {
		g.note(groups)
	}
}

func (g *groupWatch) matches(k state.GroupKey) bool {
	return (g.namespace == "" || k.Namespace == g.namespace) && strings.HasPrefix(k.Job, g.prefix)
}

func (g *groupWatch) note(groups []state.GroupKey) {
	g.mu.Lock()
	for _, k := range groups {
		if !g.matches(k) {
			continue
		}
		if len(g.dirty) >= maxGroupsDirty {
			g.slow = true
			break
		}
		g.dirty[k] = struct{}{}
	}
	due := len(g.dirty) > 0
	g.mu.Unlock()
	if due {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// take is what changed since it was called last.
func (g *groupWatch) take() (map[state.GroupKey]struct{}, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.slow {
		return nil, status.Errorf(codes.ResourceExhausted, "over %d groups changed since the reader read last: watch again", maxGroupsDirty)
	}
	dirty := g.dirty
	g.dirty = map[state.GroupKey]struct{}{}
	return dirty, nil
}

// WatchGroups sends the counts of all groups, then of those that change.
func (j jobs) WatchGroups(req *nusav1.WatchGroupsRequest, stream grpc.ServerStreamingServer[nusav1.WatchGroupsResponse]) error {
	interval := watchEvery
	if req.GetInterval() != nil {
		interval = req.GetInterval().AsDuration()
	}
	if interval < 0 || interval > maxWatchInterval {
		return rpcerr.Invalid(&nusav1.Problem{Field: "interval", Message: "must be 0 to 1 min"})
	}
	l, err := j.s.leading()
	if err != nil {
		return err
	}
	watch := &groupWatch{
		namespace: req.GetNamespace(), prefix: req.GetNamePrefix(),
		wake: make(chan struct{}, 1), dirty: map[state.GroupKey]struct{}{},
	}
	// Before the first look: a change that is not in it is noted.
	if err := l.watch.add(watch); err != nil {
		return err
	}
	defer l.watch.remove(watch)
	if err := l.sendGroups(stream, watch); err != nil {
		return err
	}
	for {
		if err := watch.wait(stream.Context(), l); err != nil {
			return err
		}
		dirty, err := watch.take()
		if err != nil {
			return err
		}
		if err := l.sendChanged(stream, dirty); err != nil {
			return err
		}
		if interval > 0 {
			pause(stream.Context(), interval)
		}
	}
}

// wait returns when something changed; its error ends the watch.
func (g *groupWatch) wait(ctx context.Context, l *leader) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return errNoMaster
	case <-g.wake:
		return nil
	}
}

type groupStream = grpc.ServerStreamingServer[nusav1.WatchGroupsResponse]

// sendGroups sends every group that the watch asks for.
func (l *leader) sendGroups(stream groupStream, watch *groupWatch) error {
	view := l.s.fsm.View()
	out := &nusav1.WatchGroupsResponse{Index: view.Index()}
	for g := range view.Groups() {
		if !watch.matches(g.Key) {
			continue
		}
		out.Groups = append(out.Groups, l.groupCounts(g))
		if len(out.Groups) == maxGroupsSent {
			if err := stream.Send(out); err != nil {
				return err
			}
			out = &nusav1.WatchGroupsResponse{Index: view.Index()}
		}
	}
	out.Synced = true
	return stream.Send(out)
}

// sendChanged sends how these groups stand now.
func (l *leader) sendChanged(stream groupStream, dirty map[state.GroupKey]struct{}) error {
	view := l.s.fsm.View()
	out := &nusav1.WatchGroupsResponse{Index: view.Index(), Synced: true}
	for k := range dirty { // in any order: each is another group
		if g, found := view.Group(k); found {
			out.Groups = append(out.Groups, l.groupCounts(g))
		} else {
			out.Groups = append(out.Groups, &nusav1.GroupCounts{Job: l.jobRef(k), Group: k.Group, Removed: true})
		}
		if len(out.Groups) == maxGroupsSent {
			if err := stream.Send(out); err != nil {
				return err
			}
			out = &nusav1.WatchGroupsResponse{Index: view.Index(), Synced: true}
		}
	}
	if len(out.Groups) == 0 {
		return nil
	}
	return stream.Send(out)
}

func (l *leader) groupCounts(g *state.GroupView) *nusav1.GroupCounts {
	return &nusav1.GroupCounts{
		Job: l.jobRef(g.Key), Group: g.Key.Group,
		Desired: g.Wanted, Unplaced: g.Unplaced, Counts: wire.InstanceCountsToProto(g.Counts),
	}
}

func (l *leader) jobRef(k state.GroupKey) *nusav1.JobRef {
	ref := &nusav1.JobRef{Namespace: k.Namespace, Name: k.Job}
	if k.Local {
		ref.Region = l.s.cfg.Region.GetName()
	}
	return ref
}
