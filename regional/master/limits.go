package master

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// limiter commits limits that later masters rely on: the feature level of the region, the
// longest lease of a node, and the time when the leases of an earlier incarnation end.
type limiter struct {
	log       *raftlog.Sequencer
	fsm       *raftlog.FSM
	clock     func() time.Duration
	elected   time.Duration
	nodeLease time.Duration
	// regionLease returns the length of the region's lease, and since when, on clock, the
	// lease has that length.
	regionLease func() (length, since time.Duration)
	// stopTime returns the longest kill timeout that an agent has reported.
	stopTime func() time.Duration
	// level returns the least feature level of the region's servers.
	level func() uint32
	// committed is called after each commit.
	committed func()
	wake      chan struct{} // with room for one
	logger    *slog.Logger
	// first is closed after the first call of commit.
	first chan struct{}
	// begun is the proposal of begin, with limits as its command. It is nil once commit has
	// waited for it.
	begun  *raftlog.Proposal
	limits *state.SetLimits
}

// begin proposes the limits that are due at the beginning of the term. It is called before
// anything else can be proposed. So a new cluster begins its epochs before it takes a job of its
// own: see state.Cluster.EpochBase.
func (l *limiter) begin() {
	l.limits, _ = l.due()
	if l.limits != nil {
		l.begun, _ = l.log.Propose(state.Command{SetLimits: l.limits}) // if this fails, commit proposes the limits
	}
}

// changed tells run that the region's servers or the length of the region's lease changed.
func (l *limiter) changed() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run commits limits when they are due, until ctx ends.
func (l *limiter) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var passed sync.Once
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-timer.C:
		}
		again, err := l.commit(ctx)
		if err != nil {
			return err
		}
		passed.Do(func() { close(l.first) })
		if again > 0 {
			timer.Reset(again)
		}
	}
}

// commit commits the limits that are due. It returns the time until the next call is due.
// 0: only a change can make one due.
func (l *limiter) commit(ctx context.Context) (again time.Duration, err error) {
	if p := l.begun; p != nil {
		l.begun = nil
		if _, err := p.Wait(ctx); err == nil { // otherwise the limits are still due
			l.stored(l.limits)
		}
	}
	cmd, again := l.due()
	if cmd == nil {
		return again, nil
	}
	if _, err := l.log.CommitQueued(ctx, state.Command{SetLimits: cmd}); err != nil {
		if ctx.Err() != nil {
			return 0, nil // the error only says that ctx ended
		}
		return 0, fmt.Errorf("commit the limits of leases: %w", err)
	}
	l.stored(cmd)
	return again, nil
}

// stored is called when limits are committed.
func (l *limiter) stored(cmd *state.SetLimits) {
	l.logger.Info("limits of leases are in the log", "feature_level", cmd.FeatureLevel, "node_lease", cmd.NodeLease, "region_lease", cmd.RegionLease, "leases_over", cmd.LeasesOver)
	l.committed()
}

// due returns the command that the log needs now, nil for none, and the time until the next
// call is due.
func (l *limiter) due() (*state.SetLimits, time.Duration) {
	view := l.fsm.View() // read the view before the length: a session that begins later belongs to another term
	length, since := l.regionLease()
	now := l.clock()
	return regionlease.Limits{
		Cluster: view.Cluster(), Level: l.level(), NodeLease: l.nodeLease, Led: now - l.elected,
		StopTime:    func() time.Duration { return max(view.LongestStop(), l.stopTime()) },
		RegionLease: length, RegionLeaseFor: now - since,
	}.Due()
}

// before returns a function that runs f after the first limits are committed. If they are
// not committed within a second, f runs all the same.
func (l *limiter) before(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		slow := time.NewTimer(time.Second)
		defer slow.Stop()
		select {
		case <-l.first:
		case <-slow.C:
		case <-ctx.Done():
		}
		return f(ctx)
	}
}
