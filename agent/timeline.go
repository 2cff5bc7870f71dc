package agent

import (
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// timeline gives the times that are compared: for restarts, back-off and
// max_runtime. The host's clock may be set, by an hour or by years; these go on
// as CLOCK_BOOTTIME does. They look like the host's time when the agent first
// ran in this boot, and are shown to nobody.
type timeline struct {
	clock func() time.Duration
	zero  time.Time // when the clock read 0
}

func (l timeline) now() time.Time { return l.zero.Add(l.clock()) }

// of places a time that the host's clock has shown: as long ago as that clock
// says, but neither in the future nor before the boot.
func (l timeline) of(wall time.Time) time.Time {
	return l.now().Add(-min(max(0, time.Since(wall)), l.clock()))
}

// anchor is what the store keeps of a timeline.
type anchor struct {
	Boot string    `json:"boot"`
	Zero time.Time `json:"zero"`
}

// timeline goes on with the one of the same boot. After another boot a new one
// begins: with the host's time, but not before anything on record, because a
// host may come up with a clock that is long past.
func (s *store) timeline(boot string, clock func() time.Duration, c contents) (timeline, error) {
	l := timeline{clock: clock}
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

// latest time on record; zero = none.
func (c contents) latest() time.Time {
	var last time.Time
	see := func(t time.Time) {
		if t.After(last) {
			last = t
		}
	}
	for _, r := range c.records {
		see(r.Actual.Started)
		for _, t := range r.Actual.Tasks {
			see(t.Finished)
			for _, at := range t.Restarts {
				see(at)
			}
		}
	}
	return last
}
