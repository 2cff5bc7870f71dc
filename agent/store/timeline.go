package store

import (
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Timeline gives times that can be compared, for restarts, back-off and max_runtime. The
// host's wall clock may be set, by an hour or by years. A timeline advances with
// CLOCK_BOOTTIME instead. It begins with the wall clock's time at the agent's first start
// since the host's boot. No user sees its times.
type Timeline struct {
	clock func() time.Duration
	zero  time.Time // the time of the timeline when clock read 0
}

// Now returns the present time of the timeline.
func (l Timeline) Now() time.Time { return l.zero.Add(l.clock()) }

// Of converts a time of the wall clock to the timeline. The result is as long ago as the
// wall clock says, but not in the future and not before the boot.
func (l Timeline) Of(wall time.Time) time.Time {
	return l.Now().Add(-min(max(0, time.Since(wall)), l.clock()))
}

// anchor is the part of a timeline that the store holds.
type anchor struct {
	Boot string    `json:"boot"`
	Zero time.Time `json:"zero"`
}

// Timeline returns the timeline since the host's boot and stores it. The first start after
// a boot begins a new timeline with the wall clock's time. If a recorded time is later, the
// timeline begins with that time, because the wall clock of a host that has just started
// may be wrong.
func (s *Store) Timeline(boot string, clock func() time.Duration, c Contents) (Timeline, error) {
	l := Timeline{clock: clock}
	err := s.db.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		var a anchor
		if err := getJSON(meta, keyTimeline, &a); err != nil {
			return err
		}
		if boot == "" || a.Boot != boot {
			now := time.Now().UTC().Round(0)
			if last := c.latest(); last.After(now) {
				now = last
			}
			a = anchor{Boot: boot, Zero: now.Add(-clock())}
		}
		l.zero = a.Zero
		return putJSON(meta, keyTimeline, a)
	})
	if err != nil {
		return l, fmt.Errorf("local store: timeline: %w", err)
	}
	return l, nil
}

// latest returns the latest recorded time, or the zero time if there is none.
func (c Contents) latest() time.Time {
	var last time.Time
	include := func(t time.Time) {
		if t.After(last) {
			last = t
		}
	}
	for _, r := range c.Records {
		include(r.Actual.Started)
		for _, t := range r.Actual.Tasks {
			include(t.Finished)
			for _, at := range t.Restarts {
				include(at)
			}
		}
	}
	return last
}
