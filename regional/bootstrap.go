package regional

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// bootstrap returns the identity of the region's cluster. The first master commits the
// identity. bootstrap returns state.ErrOtherCluster when the log belongs to another region.
func bootstrap(ctx context.Context, log raftlog.Log, fsm *raftlog.FSM, region string) (state.Cluster, error) {
	if c := fsm.View().Cluster(); c.ID != "" {
		if c.Region != region {
			return c, fmt.Errorf("%w: it is the log of region %q, this server is configured for %q", state.ErrOtherCluster, c.Region, region)
		}
		return c, nil
	}
	// The other parts of a term need the identity to start. So bootstrap commits it with a
	// sequencer of its own.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	noPlan := func(*state.View) raftlog.Decision { return raftlog.Decision{} }
	seq := raftlog.NewSequencer(log, fsm, noPlan, func([]state.Result) {})
	ended := make(chan error, 1)
	go func() { ended <- seq.Run(ctx) }()
	_, err := seq.Commit(ctx, state.Command{Bootstrap: &state.Bootstrap{ClusterID: uuid.NewString(), Region: region}})
	cancel()
	<-ended // the sequencer returns the same error as the commit
	if err != nil {
		return state.Cluster{}, fmt.Errorf("commit the identity of the cluster: %w", err)
	}
	return fsm.View().Cluster(), nil
}
