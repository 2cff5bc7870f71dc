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
	// reason: longer than an election.
	stuckAfter = 5 * time.Second
	// askEvery is the pause before the region is asked again, where it had no reason.
	askEvery = time.Second
)

// stuck returns the reason why a running region has no room for the waiting jobs, so that
// the measurement need not wait for --timeout. It returns nil when ctx ends.
func (m *measurement) stuck(ctx context.Context, b *jobTable) error {
	if m.o.Against == "" {
		return nil // the simulated nodes have room; they may only be lost for a while
	}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for awaitTick(ctx, tick.C) == nil {
		i, waits := b.waiting(stuckAfter)
		if !waits {
			continue
		}
		if why := m.whyWaiting(ctx, b.name(i)); why != "" {
			return fmt.Errorf("no more for %s: in region %s %s waits: %s; make room there, or try fewer --jobs, --count or --warmup", stuckAfter, m.region, b.name(i), why)
		}
	}
	return nil
}

// whyWaiting asks the region for the reason. It returns "" without a reason or a response;
// a later call may get one.
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

// waiting returns a job that has waited for a node for at least `least` since its
// acknowledgement, while no other job was placed.
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
