package place

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
	"pgregory.net/rapid"
)

// TestAccountIsTheSumOfTheSlots compares an account that follows changes of slots and
// reports with the sum that a plan makes of all slots.
func TestAccountIsTheSumOfTheSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asks := []Ask{{CPUMilli: 1000}, {CPUMilli: 300, MemoryBytes: 1 << 30}, {CPUMilli: 500, Pool: "gpu"}}
		j := &Job{Name: "job", Type: Service}
		for i, a := range asks {
			j.Groups = append(j.Groups, Group{Name: fmt.Sprint("g", i), Count: 100, Ask: a})
		}
		r := Region{Name: "sea", Fits: map[uint64]int{}, Bins: []Bin{{Nodes: 3, Free: Resources{CPUMilli: 8000, MemoryBytes: 1 << 35}}}}
		var account Account
		slots := map[string]region.Slot{}
		revision := int64(0)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			revision++
			g := rapid.IntRange(0, len(asks)-1).Draw(t, "group")
			key := fmt.Sprint("g", g)
			old, had := slots[key]
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0: // a report
				r.SlotsRevision = rapid.Int64Range(r.SlotsRevision, revision).Draw(t, "reported")
				r.NodesReady = rapid.IntRange(0, 3).Draw(t, "nodes")
				r.Fits[asks[g].Hash()] = rapid.IntRange(0, 10).Draw(t, "fits")
				account.Reported(&r)
			case 1: // the slot ends
				if had {
					release(&account, &r, j, &old)
					delete(slots, key)
				}
			default:
				s := region.Slot{Job: "job", Group: key, From: 0, To: rapid.IntRange(1, 9).Draw(t, "count"), Region: "sea", Generation: revision,
					System: rapid.Bool().Draw(t, "system"), State: rapid.SampledFrom([]region.SlotState{region.Offered, region.Accepted, region.Done}).Draw(t, "state"),
					ReturnTo: rapid.SampledFrom([]string{"", "", "sea", "weu"}).Draw(t, "return")}
				if rapid.Bool().Draw(t, "elsewhere") {
					s.Region = "weu"
				}
				if had && rapid.Bool().Draw(t, "accepted") {
					s = old
					s.State = rapid.SampledFrom([]region.SlotState{region.Accepted, region.Done}).Draw(t, "to")
					s.Vacant = rapid.IntRange(0, 4).Draw(t, "vacant") == 0
				}
				slots[key] = s
				if had && SameCharges(&old, &s) {
					break
				}
				if had {
					release(&account, &r, j, &old)
				}
				for _, c := range ChargesOf(j, &s) {
					if c.Region == r.Name {
						account.Put(&r, c)
					}
				}
			}
			want := newLedger([]*Region{&r})
			for _, s := range slots {
				for _, c := range ChargesOf(j, &s) {
					if c.Region == r.Name && c.counts(&r) {
						want.charge(0, *c.Ask, c.Hash, c.size(&r))
					}
				}
			}
			with := r
			with.Charged = account.Charges()
			got := newLedger([]*Region{&with})
			if len(got.of(0))+len(want.of(0)) > 0 && !reflect.DeepEqual(got.of(0), want.of(0)) {
				t.Fatalf("account %v, slots %v", got.of(0), want.of(0))
			}
		}
	})
}

func release(a *Account, r *Region, j *Job, s *region.Slot) {
	for _, c := range ChargesOf(j, s) {
		if c.Region == r.Name {
			a.Remove(r, c.Key)
		}
	}
}
