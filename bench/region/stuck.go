package region

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// stuckAfter is the time without a placement after which the region is asked for the
	// reason. It is longer than an election.
	stuckAfter = 5 * time.Second
	// askEvery is the pause before the region is asked again, if it returned no reason.
	askEvery = time.Second
)

// stuck waits until a running region has no room for the waiting jobs, and returns the
// reason. So the measurement need not wait for --timeout. It returns nil when ctx ends.
func (m *measurement) stuck(ctx context.Context, b *jobTable) error {
	if m.o.Against == "" {
		return nil // the nodes have room for all jobs, and may at most be lost for a while
	}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for awaitTick(ctx, tick.C) == nil {
		i, waits := b.waiting(stuckAfter)
		if !waits {
			continue
		}
		if why := m.whyWaiting(ctx, b.name(i)); why != "" {
			return fmt.Errorf("nothing was placed for %s: in region %s job %s waits: %s; make room there, or use smaller --jobs, --count or --warmup", stuckAfter, m.region, b.name(i), why)
		}
	}
	return nil
}

// whyWaiting asks the region why a job waits. It returns "" if the region does not respond
// or has no reason yet.
func (m *measurement) whyWaiting(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, infoWithin)
	defer cancel()
	j, err := m.load.Client(0).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: namespace, Name: name, Region: m.region}})
	if err != nil {
		return ""
	}
	var all []string
	for _, p := range j.GetStatus().GetGroups()[groupName].GetPending() {
		all = append(all, reason.WithMessage(p.GetReason(), p.GetMessage()))
	}
	return strings.Join(all, "; ")
}

// waiting returns a job that was stored at least `least` ago and is not placed yet. It
// returns false if any instance was placed in that time.
func (b *jobTable) waiting(least time.Duration) (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := time.Since(b.begin) - least
	if b.placedAt > before {
		return 0, false
	}
	for i, at := range b.answered {
		if at > 0 && at <= before && b.atNode[i] == 0 {
			return i, true
		}
	}
	return 0, false
}
