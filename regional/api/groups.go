package api

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// maxGroupsSent bounds the groups in one message.
	maxGroupsSent = 1000
	// maxGroupsDirty bounds the groups that wait for a slow reader. A group waits only once
	// however often it changes, so only very many purged groups can exceed the bound.
	maxGroupsDirty = 1 << 20
	// maxWatches bounds the watches of groups, because each watch adds a little work to
	// every commit.
	maxWatches = 64
	// maxWatchInterval is the longest pause between messages that a watch may ask for.
	maxWatchInterval = time.Minute
)

// GroupWatches holds the watches of group counts on a master. A watch stores only the keys
// of groups that changed. The counts are read when they are sent.
type GroupWatches struct {
	mu  sync.Mutex
	all map[*groupWatch]struct{}
}

// NewGroupWatches returns an empty set of watches.
func NewGroupWatches() *GroupWatches { return &GroupWatches{all: map[*groupWatch]struct{}{}} }

// groupWatch is one client's watch. It selects groups by namespace and by a prefix of the
// job name.
type groupWatch struct {
	namespace, prefix string
	wake              chan struct{} // with room for one

	mu    sync.Mutex
	dirty map[state.GroupKey]struct{}
	// overflow is true when more groups changed than dirty may hold.
	overflow bool
}

func (w *GroupWatches) add(g *groupWatch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) >= maxWatches {
		return status.Errorf(codes.ResourceExhausted, "%d watches of groups are open: end another one", maxWatches)
	}
	w.all[g] = struct{}{}
	return nil
}

func (w *GroupWatches) remove(g *groupWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, g)
}

// Changed marks groups as changed for every watch. The committed state already has the
// change.
func (w *GroupWatches) Changed(groups []state.GroupKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for g := range w.all {
		g.mark(groups)
	}
}

func (g *groupWatch) matches(k state.GroupKey) bool {
	return (g.namespace == "" || k.Namespace == g.namespace) && strings.HasPrefix(k.Job, g.prefix)
}

func (g *groupWatch) mark(groups []state.GroupKey) {
	g.mu.Lock()
	for _, k := range groups {
		if !g.matches(k) {
			continue
		}
		if len(g.dirty) >= maxGroupsDirty {
			g.overflow = true
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

// popDirty returns the groups that changed since the last call, and forgets them.
func (g *groupWatch) popDirty() (map[state.GroupKey]struct{}, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.overflow {
		return nil, status.Errorf(codes.ResourceExhausted, "over %d groups changed since the reader read last: watch again", maxGroupsDirty)
	}
	dirty := g.dirty
	g.dirty = map[state.GroupKey]struct{}{}
	return dirty, nil
}

// watchGroups sends the counts of all groups that the request selects. Then it sends the
// counts of each group that changes.
func watchGroups(s *Server, req *nusav1.WatchGroupsRequest, stream groupStream) error {
	interval := watchInterval
	if req.GetInterval() != nil {
		interval = req.GetInterval().AsDuration()
	}
	if interval < 0 || interval > maxWatchInterval {
		return rpcerr.Invalid(&nusav1.Problem{Field: "interval", Message: "must be 0 to 1 min"})
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	watch := &groupWatch{
		namespace: req.GetNamespace(), prefix: req.GetNamePrefix(),
		wake: make(chan struct{}, 1), dirty: map[state.GroupKey]struct{}{},
	}
	// The watch is added before the first view is read. So a change that this view does not
	// include marks its groups.
	if err := m.Groups.add(watch); err != nil {
		return err
	}
	defer m.Groups.remove(watch)
	if err := watch.sendAll(stream, s.State.View()); err != nil {
		return err
	}
	for {
		if err := watch.wait(stream.Context(), m.Done); err != nil {
			return err
		}
		dirty, err := watch.popDirty()
		if err != nil {
			return err
		}
		if err := sendGroups(stream, s.State.View(), dirty); err != nil {
			return err
		}
		if interval > 0 {
			wait.For(stream.Context(), interval)
		}
	}
}

// wait returns when a group has changed. An error ends the watch.
func (g *groupWatch) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return raftlog.ErrNoMaster
	case <-g.wake:
		return nil
	}
}

type groupStream = grpc.ServerStreamingServer[nusav1.WatchGroupsResponse]

// sendAll sends the counts of every group that the watch selects.
func (g *groupWatch) sendAll(stream groupStream, view *state.View) error {
	out := &nusav1.WatchGroupsResponse{Index: view.Index()}
	for group := range view.Groups() {
		if !g.matches(group.Key) {
			continue
		}
		out.Groups = append(out.Groups, groupCounts(view, group))
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

// sendGroups sends the present counts of groups.
func sendGroups(stream groupStream, view *state.View, keys map[state.GroupKey]struct{}) error {
	out := &nusav1.WatchGroupsResponse{Index: view.Index(), Synced: true}
	for k := range keys { // in any order, because each key is another group
		if g, found := view.Group(k); found {
			out.Groups = append(out.Groups, groupCounts(view, g))
		} else {
			out.Groups = append(out.Groups, &nusav1.GroupCounts{Job: jobRef(view, k), Group: k.Group, Removed: true})
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

func groupCounts(view *state.View, g *state.GroupView) *nusav1.GroupCounts {
	return &nusav1.GroupCounts{
		Job: jobRef(view, g.Key), Group: g.Key.Group,
		Desired: g.Wanted, Unplaced: g.Unplaced, Counts: wire.InstanceCountsToProto(g.Counts),
	}
}

func jobRef(view *state.View, k state.GroupKey) *nusav1.JobRef {
	ref := &nusav1.JobRef{Namespace: k.Namespace, Name: k.Job}
	if k.Local {
		ref.Region = view.Cluster().Region
	}
	return ref
}
