package region

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func lostSlot() Slot {
	return Slot{
		Namespace: "default", Job: "api", Group: "web", From: 2, To: 8, Region: "jakarta", State: Accepted, Desired: DesiredRevoke,
		Generation: 10, Revision: 12, JobVersion: 1, Run: 1, Hold: time.Minute, UnlessConnected: true, Reason: "r", Message: "m",
		ReturnTo: "tokyo", Bound: true, StopTime: time.Minute, Unbound: true,
		Former: []FormerOwner{{Region: "tokyo", Generation: 4, Fence: 1}},
	}
}

// TestTakeOverIsANewOffer: a whole slot moves under its key, and keeps the region that it came
// from.
func TestTakeOverIsANewOffer(t *testing.T) {
	s, moved := lostSlot(), time.Unix(100, 0)
	take := Takeover{From: 2, To: 8, Region: "seoul", JobVersion: 3, Run: 1, Bound: true, StopTime: 5 * time.Second, Because: "b", Fence: 2, Moved: moved}
	want := Slot{
		Namespace: "default", Job: "api", Group: "web", From: 2, To: 8, Region: "seoul", State: Offered, Desired: DesiredRun,
		Revision: 12, JobVersion: 3, Run: 1, PlacedBecause: "b", Bound: true, StopTime: 5 * time.Second, Home: "jakarta",
		Former: []FormerOwner{{Region: "tokyo", Generation: 4, Fence: 1}, {Region: "jakarta", Generation: 10, Moved: moved, Fence: 2, MayRun: true, Bound: true, StopTime: time.Minute}},
	}
	if got := TakeOver(s, take); !reflect.DeepEqual(got, []Change{{Slot: want}}) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	take.NothingRuns = true
	if got := TakeOver(s, take); len(got[0].Slot.Former) != 1 || got[0].Slot.Home != "jakarta" {
		t.Errorf("nothing runs there: %+v", got[0].Slot)
	}
	take.Region, take.NothingRuns, s.Home = "tokyo", false, "tokyo"
	if got := TakeOver(s, take)[0].Slot; len(got.Former) != 1 || got.Former[0].Region != "jakarta" || got.Home != "" {
		t.Errorf("back at its first region: %+v", got)
	}
	s.Former = []FormerOwner{{Region: "a", MayRun: true}, {Region: "b"}, {Region: "c", MayRun: true}, {Region: "d"}}
	got := TakeOver(s, take)[0].Slot.Former
	if len(got) != MaxFormer || got[0].Region != "a" || got[1].Region != "c" || got[MaxFormer-1].Region != "jakarta" || s.Former[1].Region != "b" || s.Crowded() {
		t.Errorf("too many former owners: %+v", got)
	}
	s.Former[1].MayRun, s.Former[3].MayRun = true, true
	if !s.Crowded() {
		t.Error("four former owners may run the slot, and a fifth one is not too many")
	}
}

// TestFormerOwnerGetsBackWhatBindsIt: a region may still run an earlier version with a longer stop
// time. It owns the slot again, by the present owner's answer or in a takeover. A verdict about the
// region has to wait for that version.
func TestFormerOwnerGetsBackWhatBindsIt(t *testing.T) {
	s := lostSlot()
	s.Former, s.ReturnTo = nil, ""
	s = TakeOver(s, Takeover{From: 2, To: 8, Region: "seoul", JobVersion: 2, Run: 1})[0].Slot
	s.Former[0].Hold = true
	for name, next := range map[string]Slot{
		"answer":   *s.released(Answer{}),
		"takeover": TakeOver(s, Takeover{From: 2, To: 8, Region: "jakarta", JobVersion: 2, Run: 1})[0].Slot,
	} {
		if next.Region != "jakarta" || !next.Bound || next.StopTime != time.Minute || !next.Unbound {
			t.Errorf("%s: %+v", name, next)
		}
	}
}

// TestReturnsOnlyToAConnectedRegion: the owner confirms a planned return, or gives up instances
// that a former owner holds. The region that would get the slot is cut off meanwhile, so it does
// not get the slot.
func TestReturnsOnlyToAConnectedRegion(t *testing.T) {
	for _, connected := range []bool{true, false} {
		for name, change := range map[string]func(*Slot){
			"planned": func(s *Slot) { s.ReturnTo, s.Former = "jakarta", nil },
			"held":    func(s *Slot) { s.Former[0].Hold = true },
			"both":    func(s *Slot) { s.ReturnTo, s.Former[0].Hold = "jakarta", true },
		} {
			s := lostSlot()
			s.Region, s.Former, s.ReturnTo = "seoul", []FormerOwner{{Region: "jakarta", Generation: 4, MayRun: true}}, ""
			change(&s)
			was := s.String()
			next := s.Reachable(func(string) bool { return connected }).released(Answer{})
			switch {
			case connected && (next == nil || next.Region != "jakarta" || next.Vacant):
				t.Errorf("%s, connected: %v", name, next)
			case !connected && next != nil && (!next.Vacant || next.Former[0].Region != "jakarta"), !connected && next == nil && name != "planned":
				t.Errorf("%s, cut off: %v", name, next)
			}
			if s.String() != was {
				t.Errorf("%s: changed in place: %s", name, s)
			}
		}
	}
}

// TestLateAnswersAboutMovedSlotsChangeNothing: the former owner's answers move nothing,
// neither while another region owns the slot, nor after the slot has returned.
func TestLateAnswersAboutMovedSlotsChangeNothing(t *testing.T) {
	s := lostSlot()
	for _, to := range []string{"seoul", "jakarta"} {
		next := TakeOver(s, Takeover{From: 2, To: 8, Region: to, JobVersion: 1, Run: 1, Fence: 2})[0].Slot
		next.Generation, next.Revision = s.Generation+10, s.Generation+10
		for _, state := range []SlotState{Accepted, Done, Rejected, Returned, Revoked, Stopped, Kept} {
			late := Answer{Namespace: "default", Job: "api", Group: "web", From: 2, To: 8, Generation: 10, State: state}
			want := next
			if to == "seoul" && (state == Revoked || state == Stopped) {
				want.Former = nil // no instance of the slot runs there any more
			}
			out := ApplyAnswer([]Slot{next}, "jakarta", late)
			if len(out.Released) > 0 || len(out.Changes) > 1 || len(out.Changes) == 1 && !sameOffer(out.Changes[0], want) {
				t.Errorf("moved to %s: %s changes %v", to, late, out.Changes)
			}
		}
		s = next
	}
}

// sameOffer reports whether a change leaves everything about an offer the same, except for its
// former owners.
func sameOffer(c Change, s Slot) bool {
	if len(c.Slot.Former) >= len(s.Former) && s.Former != nil {
		return false
	}
	c.Slot.Former, s.Former = nil, nil
	return !c.Delete && reflect.DeepEqual(c.Slot, s)
}

// TestTakeOverOfParts: every index has one owner before and after. A part that does not move and
// keeps its key stays the same offer. No record is written twice.
func TestTakeOverOfParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := lostSlot()
		s.To = s.From + rapid.IntRange(1, 8).Draw(t, "count")
		owner := map[int]string{}
		var parts []Takeover
		for at := s.From; at < s.To; {
			n := rapid.IntRange(1, s.To-at).Draw(t, "part")
			to := rapid.SampledFrom([]string{"", "seoul", "tokyo"}).Draw(t, "to")
			for i := at; i < at+n; i++ {
				owner[i] = to
			}
			if to != "" {
				parts = append(parts, Takeover{From: at, To: at + n, Region: to, JobVersion: 2, Run: 1})
			}
			at += n
		}
		seen := map[int]int{}
		var keys []string
		for _, c := range TakeOver(s, parts...) {
			p := c.Slot
			if c.Delete || slices.Contains(keys, p.Key()) {
				t.Fatalf("%s after %v", c, keys)
			}
			keys = append(keys, p.Key())
			if (p.Key() == s.Key()) != (p.Revision == s.Revision) || p.Key() != s.Key() && (p.Revision != 0 || p.Generation != 0) {
				t.Fatalf("%s is compared with revision %d", c, p.Revision)
			}
			for i := p.From; i < p.To; i++ {
				seen[i]++
				if want := owner[i]; want == "" && (p.Region != s.Region || p.State != s.State || p.Desired != s.Desired) ||
					want != "" && (p.Region != want || p.State != Offered || p.Generation != 0) {
					t.Fatalf("index %d: %s, want owner %q", i, c, want)
				}
			}
		}
		for i := s.From; i < s.To; i++ {
			if seen[i] != 1 {
				t.Fatalf("index %d has %d owners", i, seen[i])
			}
		}
	})
}

// TestBindRemembersBoth: after an update the owner may run a bound and an unbound version. The
// longest stop time of the bound versions counts.
func TestBindRemembersBoth(t *testing.T) {
	var s Slot
	s.Bind(true, 5*time.Second)
	s.Bind(true, 2*time.Second)
	if !s.Bound || s.Unbound || s.StopTime != 5*time.Second {
		t.Errorf("two bound versions: %+v", s)
	}
	s.Bind(false, time.Hour)
	if !s.Bound || !s.Unbound || s.StopTime != 5*time.Second {
		t.Errorf("then an unbound one: %+v", s)
	}
}

// TestAnswerSaysTheStopTime: after a recovery of the store the owner may run a version that the
// store does not know. The slot waits for the longer stop time that the owner names.
func TestAnswerSaysTheStopTime(t *testing.T) {
	s := Slot{Namespace: "default", Job: "api", Group: "web", To: 2, Region: "sea", State: Accepted, Desired: DesiredRun, Generation: 7,
		Bound: true, Unbound: true, StopTime: 5 * time.Second}
	a := Answer{Namespace: "default", Job: "api", Group: "web", To: 2, Generation: 7, State: Accepted, Bound: true}
	for _, c := range []struct{ says, want time.Duration }{{9 * time.Second, 9 * time.Second}, {2 * time.Second, 5 * time.Second}, {0, 5 * time.Second}} {
		a.StopTime = c.says
		out := ApplyAnswer([]Slot{s}, "sea", a)
		if len(out.Changes) != 1 || out.Changes[0].Slot.StopTime != c.want || out.Changes[0].Slot.Unbound {
			t.Errorf("the owner says %s: %+v", c.says, out.Changes)
		}
	}
}
