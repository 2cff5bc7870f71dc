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
	// stuckAfter is how long nothing is placed, though a job waits, until the
	// region is asked why: longer than an election.
	stuckAfter = 5 * time.Second
	// askEvery is the pause until it is asked again, where it had no reason.
	askEvery = time.Second
)

// stuck is why a region that goes on has no room for what waits, once it says so:
// then waiting for --timeout tells nothing more. Nil when ctx ended.
func (m *measurement) stuck(ctx context.Context, b *jobTable) error {
	if m.o.Against == "" {
		return nil // its nodes have room, and may be lost for a while
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

// whyWaiting asks the region; "" when it has no reason, or does not answer: the
// next call may.
func (m *measurement) whyWaiting(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, infoWithin)
	defer cancel()
	j, err := m.load.client(0).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: namespace, Name: name, Region: m.region}})
	if err != nil {
		return ""
	}
	var all []string
	for _, p := range j.GetStatus().GetGroups()[groupName].GetPending() {
		all = append(all, reason.WithMessage(p.GetReason(), p.GetMessage()))
	}
	return strings.Join(all, "; ")
}

// waiting is a job that waits for a node since it was acknowledged, so long ago,
// while no other got one.
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
