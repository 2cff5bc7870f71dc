package master

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// limiter commits what later masters rely on: the feature level of the region, the
// greatest length of a node's lease, and the end of the leases of an earlier
// incarnation.
type limiter struct {
	log       *raftlog.Sequencer
	fsm       *raftlog.FSM
	clock     func() time.Duration
	elected   time.Duration
	nodeLease time.Duration
	// level returns the least feature level of the region's servers.
	level  func() uint32
	wake   chan struct{} // room for one
	logger *slog.Logger
}

// levelChanged notes that the region's servers changed.
func (l *limiter) levelChanged() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run commits the limits that are due, until ctx ends.
func (l *limiter) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-timer.C:
		}
		view := l.fsm.View()
		cmd, again := regionlease.Limits{
			Cluster: view.Cluster(), Level: l.level(), NodeLease: l.nodeLease, Led: l.clock() - l.elected, StopTime: view.LongestStop,
		}.Due()
		if cmd != nil {
			if _, err := l.log.CommitQueued(ctx, state.Command{SetLimits: cmd}); err != nil {
				if ctx.Err() != nil {
					return nil // the error only says that ctx ended
				}
				return fmt.Errorf("commit the limits of leases: %w", err)
			}
			l.logger.Info("limits of leases", "feature_level", cmd.FeatureLevel, "node_lease", cmd.NodeLease, "leases_over", cmd.LeasesOver)
		}
		if again > 0 {
			timer.Reset(again)
		}
	}
}
