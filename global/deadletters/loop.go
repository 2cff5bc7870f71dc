package deadletters

import (
	"context"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// callsAtOnce bounds the calls to regions at the same time.
	callsAtOnce = 8
	// awaitMost is how long the result of a job waits for a region that does not return the failed instances.
	awaitMost = 10 * time.Second
	// pendingPause is how long instances wait for the result of their job, to share its transaction.
	pendingPause = 300 * time.Millisecond
	// tidyEvery is how often old dead letters are forgotten.
	tidyEvery = 5 * time.Second
	// pendingMost bounds the instances that are not stored yet. Beyond that no region is asked.
	pendingMost = 4 * mostInstances
)

// part is a region's part of a job.
type part struct {
	job    state.JobKey
	region string
}

// mark identifies the failures that a summary counts.
type mark struct {
	version, run int64
	failed       int32
}

// ask is a part of a job about which its region must be asked.
type ask struct {
	mark
	since time.Time
}

// Run asks regions and stores dead letters until ctx ends.
func (b *Book) Run(ctx context.Context) error {
	if err := b.load(ctx); err != nil {
		return err
	}
	close(b.ready)
	g, ctx := errgroup.WithContext(ctx)
	for range logReaders {
		g.Go(func() error { return readLogs(ctx, b) })
	}
	g.Go(func() error { return b.loop(ctx, g) })
	return g.Wait()
}

func (b *Book) loop(ctx context.Context, calls *errgroup.Group) error {
	queueRecentLogs(b)
	pause := time.NewTimer(0)
	defer pause.Stop()
	tidied := time.Time{}
	for {
		changed, woken := b.st.Letters.Wake.C(), b.wake.C()
		now := time.Now()
		b.look(now)
		for _, region := range b.due(now) {
			calls.Go(func() error { b.askRegion(ctx, region); return nil })
		}
		b.keepDue(ctx, now)
		if now.Sub(tidied) >= tidyEvery {
			tidied = now
			tidy(ctx, b, now)
		}
		pause.Reset(b.untilNext(time.Now(), tidied.Add(tidyEvery)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-woken:
		case <-pause.C:
		}
	}
}

// look notes which regions must be asked because of new summaries.
func (b *Book) look(now time.Time) {
	b.st.Lock()
	defer b.st.Unlock()
	some := false
	for k := range b.failed() {
		some = true
		j := b.st.Jobs[k]
		if j == nil || j.Record == nil {
			continue
		}
		for region, sum := range j.Summaries.Decoded() {
			m := markOf(sum)
			if m.failed == 0 || b.seen[part{k, region}] == m {
				continue
			}
			if b.wanted[region] == nil {
				b.wanted[region] = map[state.JobKey]*ask{}
			}
			if old := b.wanted[region][k]; old != nil {
				old.mark = m
				continue
			}
			b.wanted[region][k] = &ask{m, now}
		}
	}
	if some || len(b.wanted) > 0 { // a result may have waited long enough
		b.cfg.WakePlacer()
	}
}

// failed returns the jobs with new failures that may leave dead letters. The lock is held.
func (b *Book) failed() state.JobSet {
	out := state.JobSet{}
	maps.Copy(out, b.later)
	maps.Copy(out, state.TakeFailed(b.st))
	b.later = state.JobSet{}
	retried := b.st.Letters.Retried
	if retried == nil {
		return out
	}
	maps.DeleteFunc(out, func(k state.JobKey, _ struct{}) bool {
		again, known := retried(k)
		if !known {
			b.later[k] = struct{}{}
		}
		return again || !known
	})
	return out
}

func markOf(sum *nusav1.JobSummary) mark {
	m := mark{version: sum.GetVersion(), run: sum.GetRun()}
	for _, c := range sum.GetGroups() {
		m.failed += c.GetFailed()
	}
	return m
}

// due returns the regions to ask now, and marks them as being asked.
func (b *Book) due(now time.Time) (out []string) {
	b.st.Lock()
	defer b.st.Unlock()
	if b.pendingCount >= pendingMost {
		return nil
	}
	for region, jobs := range b.wanted {
		if b.st.Regions[region] == nil { // the region was removed
			delete(b.wanted, region)
			delete(b.retries, region)
		} else if len(jobs) == 0 {
			delete(b.wanted, region)
		} else if len(b.asking) < callsAtOnce && !b.asking[region] && !now.Before(b.retries[region].until) {
			b.asking[region] = true
			out = append(out, region)
		}
	}
	return out
}

// asked notes that a region is not being asked any more.
func (b *Book) asked(region string) {
	b.st.Lock()
	defer b.st.Unlock()
	delete(b.asking, region)
	b.wake.Notify()
}

// untilNext returns how long nothing is due.
func (b *Book) untilNext(now, next time.Time) time.Duration {
	b.st.Lock()
	defer b.st.Unlock()
	if !b.pendingSince.IsZero() {
		next = earlier(next, b.pendingSince.Add(pendingPause))
	}
	for region, jobs := range b.wanted {
		if len(jobs) > 0 && !b.asking[region] && len(b.asking) < callsAtOnce && b.pendingCount < pendingMost {
			next = earlier(next, b.retries[region].until)
		}
	}
	return max(10*time.Millisecond, next.Sub(now))
}

func earlier(x, y time.Time) time.Time {
	if y.Before(x) {
		return y
	}
	return x
}

// awaited reports whether the result of a job must wait for dead letters. The lock is held.
func (b *Book) awaited(j *state.Job) bool {
	if _, waits := b.later[j.Key]; waits || b.st.Letters.Noted(j.Key) || len(b.pending[j.Key]) > together {
		return true
	}
	for _, region := range j.Summaries.Regions() { // many results may wait for many regions
		if a := b.wanted[region][j.Key]; a != nil && time.Since(a.since) < awaitMost {
			return true
		}
	}
	return false
}
