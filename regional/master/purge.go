package master

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// endedRetention is how long an ended allocation stays in the state.
	endedRetention = time.Hour
	// goneRetention is how long a node that is lost or has left stays in the state. For
	// that time a lost node is assumed to run its allocations. A node that returns later
	// registers as a new node and stops its allocations.
	goneRetention = 72 * time.Hour
	// goneAfterLeading is how long a master must have led before it forgets a node. Without
	// this wait, a master whose clock is wrong could forget nodes that are about to
	// connect.
	goneAfterLeading = time.Hour
	// purgeEvery is the pause between two passes.
	purgeEvery = time.Minute
	// purgePerCommand bounds the job versions and keys in one command, so that the command
	// fits a log entry. purgeCommands bounds the commands of one pass.
	purgePerCommand = 1000
	purgeCommands   = 1000
)

// purger forgets jobs, allocations and nodes that ended long ago.
type purger struct {
	log    *raftlog.Sequencer
	fsm    *raftlog.FSM
	logger *slog.Logger
}

// run makes a pass every purgeEvery until ctx ends.
func (p *purger) run(ctx context.Context) error {
	began := time.Now()
	for range wait.Ticks(ctx, purgeEvery) {
		led := time.Since(began) // measured by the monotonic clock
		now := steadyNow(time.Now(), began, led)
		err := p.purgeEnded(ctx, now)
		if err == nil && led >= goneAfterLeading {
			err = p.removeNodes(ctx, now)
		}
		if ctx.Err() != nil {
			return nil // the error only says that ctx ended
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// purgeEnded forgets jobs and allocations that have been ended for endedRetention.
func (p *purger) purgeEnded(ctx context.Context, now time.Time) error {
	before := now.Add(-endedRetention).UnixNano()
	for range purgeCommands { // short batch jobs may end faster than one command purges
		c := p.fsm.View().Purgeable(before, now.UnixNano(), purgePerCommand)
		if c == nil {
			return nil
		}
		r, err := p.log.CommitQueued(ctx, state.Command{Purge: c})
		if err != nil {
			return fmt.Errorf("purge ended jobs and allocations: %w", err)
		}
		if !r.Changed {
			return nil // every listed job version and key is in use again
		}
	}
	return nil
}

// removeNodes forgets nodes that are gone for longer than goneRetention.
func (p *purger) removeNodes(ctx context.Context, now time.Time) error {
	for _, n := range removableNodes(p.fsm.View(), now.Add(-goneRetention).UnixNano()) {
		r, err := p.log.CommitQueued(ctx, state.Command{RemoveNode: &state.RemoveNode{ID: n.ID}})
		if err != nil && r.Err == nil { // r.Err is set if the node has returned in this moment
			return fmt.Errorf("forget a node: %w", err)
		}
		if err == nil {
			p.logger.Info("node is forgotten", "node", n.Name, "id", n.ID, "gone", goneRetention)
		}
	}
	return nil
}

// steadyNow returns the time of the wall clock. If that clock was set forward after began,
// steadyNow returns began plus passed, where passed was measured by the monotonic clock. So
// a wrong wall clock can only make entries stay longer.
func steadyNow(wall, began time.Time, passed time.Duration) time.Time {
	if steady := began.Add(passed); steady.Before(wall) {
		return steady
	}
	return wall
}

// removableNodes returns the nodes that left the ready status before the given time. A node
// is left out if an operator cordoned or drained it, or if an instance must wait for it.
// Other instances of such a node have been replaced, or are disconnected and fit no other
// node of this region. After their node is forgotten, the region returns them to the global
// tier like other instances that fit nowhere.
func removableNodes(view *state.View, before int64) []*state.Node {
	var out []*state.Node
nodes:
	for n := range view.Nodes() {
		if n.Status == state.NodeReady || n.StatusUnixNano >= before || n.Cordoned || n.Draining {
			continue
		}
		for a := range view.NodeAllocs(n.ID) {
			if a.Live() && mustNotReplace(view, a) {
				continue nodes
			}
		}
		out = append(out, n)
	}
	return out
}

// mustNotReplace reports whether only the node itself or an operator may end an allocation
// of a lost node. It is false for a system job, because such a job wants no instance on a
// node that is gone.
func mustNotReplace(view *state.View, a *state.Alloc) bool {
	job, ok := view.Job(a.Key().JobKey(), a.JobVersion)
	return ok && job.Type != state.System && sched.MustWait(view, a)
}
