package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
)

// TestUpkeep: the history is dropped when the store fills. A store that refuses writes gets room at
// once. A database is defragmented only if that takes little time or cannot wait.
func TestUpkeep(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	usage := func(bytes, inUse, quota int64) store.Usage {
		return store.Usage{Bytes: bytes, InUse: inUse, Quota: quota}
	}
	full := usage(10*gib, 10*gib, 8*gib)
	full.NoSpace = true
	for name, c := range map[string]struct {
		use            store.Usage
		done           []store.Step // at 0 s
		now            time.Duration
		standby, other bool
		want           store.Step
	}{
		"little":                        {use: usage(gib, gib, 8*gib)},
		"half full":                     {use: usage(4*gib, 4*gib, 8*gib), want: store.StepCompact},
		"half full, at a standby":       {use: usage(4*gib, 4*gib, 8*gib), standby: true},
		"half full, compacted":          {use: usage(4*gib, 4*gib, 8*gib), done: []store.Step{store.StepCompact}, now: 59 * time.Second},
		"half full, compacted before":   {use: usage(4*gib, 4*gib, 8*gib), done: []store.Step{store.StepCompact}, now: time.Minute, want: store.StepCompact},
		"crowded, compacted before":     {use: usage(7*gib, 7*gib, 8*gib), done: []store.Step{store.StepCompact}, now: 5 * time.Second, want: store.StepCompact},
		"no space":                      {use: full, standby: true, want: store.StepCompact},
		"no space, compacted":           {use: full, done: []store.Step{store.StepCompact}, want: store.StepDefragment},
		"no space, made room":           {use: full, done: []store.Step{store.StepCompact, store.StepDefragment}, want: store.StepResume},
		"much free, short":              {use: usage(4*gib, 100*mib, 8*gib), want: store.StepDefragment},
		"much free, short, of others":   {use: usage(4*gib, 100*mib, 8*gib), other: true},
		"much free, short, and again":   {use: usage(4*gib, 100*mib, 8*gib), done: []store.Step{store.StepDefragment}, now: 9 * time.Minute},
		"much free, long":               {use: usage(4*gib, gib, 8*gib)},
		"two quotas, half free":         {use: usage(16*gib, 7*gib, 8*gib), done: []store.Step{store.StepCompact}, now: time.Second, want: store.StepDefragment},
		"over the quota, half free":     {use: usage(15*gib, 7*gib, 8*gib), done: []store.Step{store.StepCompact}, now: time.Second},
		"the quota is not known":        {use: usage(9*gib, 9*gib, 0)},
		"a small database, mostly free": {use: usage(20*mib, mib, 32*mib)},
	} {
		t.Run(name, func(t *testing.T) {
			var u store.Upkeep
			for _, step := range c.done {
				u = u.Did(0, step)
			}
			u = u.Seen(0, c.use)
			if got := u.Next(c.now, c.use, store.Place{Lead: !c.standby, Embedded: !c.other, Members: 1}); got != c.want {
				t.Errorf("%+v: %q, want %q", c.use, got, c.want)
			}
		})
	}
}

// TestOneMemberDefragmentsAtATime: three members run out of space, or grow to two quotas. They
// defragment one after another, the active server last and each once. Then the store takes writes
// again.
func TestOneMemberDefragmentsAtATime(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		use   store.Usage
		every time.Duration // time of a defragmentation
		lead  int
		want  []int
	}{
		"no space":                {store.Usage{Bytes: 24 * gib, InUse: 4 * gib, Quota: 8 * gib, NoSpace: true}, 80 * time.Second, 0, []int{1, 2, 0}},
		"two quotas":              {store.Usage{Bytes: 16 * gib, InUse: 4 * gib, Quota: 8 * gib}, 80 * time.Second, 1, []int{0, 2, 1}},
		"no space, little in use": {store.Usage{Bytes: gib, InUse: gib / 64, Quota: gib / 3, NoSpace: true}, 4 * time.Second, 2, []int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var upkeep [3]store.Upkeep
			uses, until := [3]store.Usage{c.use, c.use, c.use}, [3]time.Duration{}
			full := c.use.NoSpace
			var got []int
			for now := time.Duration(0); now < 9*time.Minute; now += time.Second {
				still := 0
				for i := range upkeep {
					if now < until[i] {
						still++
						continue
					}
					uses[i].NoSpace = full
					upkeep[i] = upkeep[i].Seen(now, uses[i])
					at := store.Place{Lead: i == c.lead, Embedded: true, Turn: i, Members: 3}
					step := upkeep[i].Next(now, uses[i], at)
					upkeep[i] = upkeep[i].Did(now, step)
					switch step {
					case store.StepDefragment:
						still++
						until[i], uses[i].Bytes = now+c.every, uses[i].InUse
						got = append(got, i)
					case store.StepResume:
						if len(got) < 3 {
							t.Fatalf("at %s the store writes again, but only the members %v have room", now, got)
						}
						full = false
					}
				}
				if still > 1 {
					t.Fatalf("at %s %d members stand still", now, still)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("members defragment in the order %v, want %v", got, c.want)
			}
			if full {
				t.Error("the store still refuses writes")
			}
		})
	}
}
