package gather

import (
	"context"
	"errors"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
)

// MostBytes bounds what the records of all regions' trails take. A small store has less for them.
const MostBytes = 64 << 20

const (
	// ageEvery is how often old records are removed.
	ageEvery = time.Hour
	// removals bounds the records that one transaction removes.
	removals = 100
)

// forgetExcess removes the oldest records until the rest fits. It begins with those of the region that
// has the most.
func (g *Gather) forgetExcess(ctx context.Context) {
	for most := g.Most(); ; {
		g.mu.Lock()
		numbers := g.shares.Excess(most, removals)
		g.mu.Unlock()
		if len(numbers) == 0 {
			return
		}
		_, err := g.Commit.Do(ctx, func(tx *state.Tx) error { return state.ForgetForwarded(tx, numbers) })
		if err != nil {
			g.failedToForget(ctx, err)
			return
		}
	}
}

// forgetOld removes the records that are too old.
func (g *Gather) forgetOld(ctx context.Context, now time.Time) {
	before := now.Add(-g.Age).UnixNano()
	g.mu.Lock()
	some := g.shares.Before(before)
	g.mu.Unlock()
	if !some {
		return
	}
	_, err := g.Commit.Do(ctx, func(tx *state.Tx) error { return state.ForgetForwardedBefore(tx, before) })
	if err != nil {
		g.failedToForget(ctx, err)
	}
}

// failedToForget logs that records stay in the store. The next term counts them again.
func (g *Gather) failedToForget(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, state.ErrConflict) {
		g.Log.Warn("the store keeps more records of regions' audit trails than it should", "error", err)
	}
}
