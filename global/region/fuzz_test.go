package region

import "testing"

// FuzzAnswers: whatever region alpha answers, the indices stay what they were, no index gets two owners, and
// a slot in which alpha has and had no part does not change.
func FuzzAnswers(f *testing.F) {
	states := []SlotState{Accepted, Done, Rejected, Returned, Revoked, Stopped, Kept, Offered, ""}
	for n := range states {
		f.Add(0, 12, int64(5), n, "web", true, uint64(9))
		f.Add(2, 3, int64(5), n, "web", false, uint64(0))
		f.Add(5, 7, int64(3), n, "web", false, uint64(9))
		f.Add(5, 7, int64(3), n, "web", true, uint64(1))
	}
	f.Add(-1, 1<<62, int64(-1), 0, "web", false, uint64(0))
	f.Add(3, 3, int64(5), 0, "other", false, uint64(0))
	f.Fuzz(func(t *testing.T, from, to int, generation int64, state int, group string, flag bool, fence uint64) {
		for _, desired := range []Desired{DesiredRun, DesiredRevoke, DesiredStop} {
			slot := func(from, to int, region string, generation int64, former ...FormerOwner) Slot {
				return Slot{Namespace: "default", Job: "job", Group: "web", From: from, To: to, Region: region, State: Accepted, Desired: desired,
					Generation: generation, Revision: generation, Former: former, UnlessConnected: flag && desired == DesiredRevoke}
			}
			alpha := FormerOwner{Region: "alpha", Generation: 3, Fence: 4, Hold: flag}
			slots := []Slot{slot(0, 4, "alpha", 5), slot(4, 8, "beta", 6, alpha), slot(8, 10, "beta", 5), slot(10, 12, "alpha", 5, FormerOwner{Region: "beta", Generation: 2})}
			a := Answer{Namespace: "default", Job: "job", Group: group, From: from, To: to, Generation: generation,
				State: states[uint(state)%uint(len(states))], MayRun: flag, Bound: !flag, Fence: fence}
			out := ApplyAnswer(slots, "alpha", a)
			if (out.Ignored == IgnoredNone) != (len(out.Changes) > 0) {
				t.Fatalf("%s is ignored as %q and changes %v", a, out.Ignored, out.Changes)
			}
			checkOwners(t, slots, out, a)
		}
	})
}

// checkOwners checks the slots after the changes of an answer of region alpha.
func checkOwners(t *testing.T, before []Slot, out Outcome, a Answer) {
	t.Helper()
	after := map[string]Slot{}
	for _, s := range before {
		after[s.Key()] = s
	}
	for _, c := range out.Changes {
		if c.Delete {
			delete(after, c.Slot.Key())
		} else {
			after[c.Slot.Key()] = c.Slot
		}
	}
	owners := map[int]string{}
	for _, s := range after {
		if s.From < 0 || s.From >= s.To || s.To > 12 {
			t.Fatalf("%s: slot %s", a, s)
		}
		for i := s.From; i < s.To; i++ {
			if other, twice := owners[i]; twice {
				t.Fatalf("%s: %d belongs to %s and %s", a, i, other, s.Region)
			}
			owners[i] = s.Region
		}
	}
	for i := range 12 {
		own := i < 4 || i >= 10
		switch {
		case !own && owners[i] != "beta":
			t.Fatalf("%s: %d belongs to %q", a, i, owners[i])
		case own && (i < a.From || i >= a.To) && owners[i] != "alpha":
			t.Fatalf("%s: %d, for which alpha did not answer, belongs to %q", a, i, owners[i])
		}
	}
	for _, c := range out.Changes {
		if c.Slot.From >= 8 && c.Slot.To <= 10 {
			t.Fatalf("%s: %s", a, c)
		}
	}
}
