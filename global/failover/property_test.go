package failover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestDecideAgreesWithTheRules compares plans with the rules. The oracle evaluates each rule over
// the whole snapshot.
func TestDecideAgreesWithTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		p := Decide(s)
		if again := Decide(s); again.String() != p.String() {
			t.Fatalf("two plans of one snapshot:\n%s\n%s", p, again)
		}
		paused := oraclePaused(s) || oracleEarlier(s)
		if held := len(s.Unconfirmed) > 0; p.Paused != paused || p.Holds() != (paused || held) || (p.Unconfirmed != "") != held {
			t.Fatalf("paused %v, want %v\n%+v", p.Paused, paused, s)
		}
		if (p.Resign != "") != (p.Alarm != "" && p.Alarm != s.Earlier && s.OtherServers > 0 && !s.Resigned) || p.Alarm != "" && !paused || p.Forget && (paused || !s.Resigned) {
			t.Fatalf("%s of %+v", p, s)
		}
		for i := range s.Regions {
			checkRegion(t, s, p, &s.Regions[i], p.Holds())
		}
	})
}

func checkRegion(t *rapid.T, s Snapshot, p Plan, r *Region, paused bool) {
	at := slices.IndexFunc(p.Regions, func(d RegionDue) bool { return d.Region == r.Name })
	sees := !r.NeverConnected && (r.Lost || r.Silent >= s.Quiet())
	if (at >= 0) != sees {
		t.Fatalf("%s is in the plan: %v, want %v", r.Name, at >= 0, sees)
	}
	verdict := slices.ContainsFunc(p.Verdicts, func(v Verdict) bool { return v.Region == r.Name })
	wantVerdict := false
	for i, slot := range r.Slots {
		in, moves := oracleDue(s, r, slot)
		wantVerdict = wantVerdict || sees && !r.Lost && moves && in == 0 && !paused
		if !sees {
			continue
		}
		d := p.Regions[at].Slots[i]
		now := moves && in == 0 && r.Lost && (!paused || r.NothingRuns)
		drop := (slot.Stopping || slot.System) && r.NothingRuns
		if d.Moves != moves || d.In != in || d.Now != now || d.Drop != drop || d.Message == "" {
			t.Fatalf("%s: got %+v, want moves %v in %s now %v drop %v", slot, d, moves, in, now, drop)
		}
	}
	if verdict != wantVerdict {
		t.Fatalf("verdict about %s: %v, want %v\n%s", r.Name, verdict, wantVerdict, p)
	}
}

// oracleDue returns when a slot is due: when all slots of its set are due.
func oracleDue(s Snapshot, r *Region, slot Slot) (time.Duration, bool) {
	if slot.System || slot.Done || slot.Stopping {
		return 0, false
	}
	in := time.Duration(0)
	for _, o := range r.Slots {
		together := o == slot || slot.Set != "" && o.Set == slot.Set && o.Job == slot.Job
		if !together || o.System || o.Done || o.Stopping || r.NothingRuns {
			continue
		}
		if !o.Replace || o.Stop && o.Unbound {
			return 0, false
		}
		in = max(in, o.After-r.Silent, s.Quiet()+2*time.Second-r.Silent)
		if o.Stop || o.Bound {
			in = max(in, o.BoundFor)
		}
		if s.Calm < s.Active {
			in = max(in, s.Lease-s.Calm)
		}
	}
	return in, true
}

// oraclePaused says whether at least three regions, and more than a third of all, fell
// silent within one lease, and at least one of them has something to move.
func oraclePaused(s Snapshot) bool {
	movable := func(r *Region) bool {
		return slices.ContainsFunc(r.Slots, func(slot Slot) bool { _, moves := oracleDue(s, r, slot); return moves })
	}
	var all, silent []*Region
	for i := range s.Regions {
		r := &s.Regions[i]
		quiet := r.Silent >= s.Quiet()
		if r.Lost || r.NeverConnected {
			continue
		}
		all = append(all, r)
		if quiet {
			silent = append(silent, r)
		}
	}
	for _, first := range silent {
		var fell []*Region
		for _, r := range silent {
			if r.Silent >= first.Silent && r.Silent-first.Silent <= s.LeaseMax {
				fell = append(fell, r)
			}
		}
		if len(fell) >= 3 && len(fell)*3 > len(all) && slices.ContainsFunc(fell, movable) {
			return true
		}
	}
	return false
}

// oracleEarlier: a new active server relies on the alarm of an earlier one while too many
// regions have not connected.
func oracleEarlier(s Snapshot) bool {
	known := slices.DeleteFunc(slices.Clone(s.Regions), func(r Region) bool { return r.Lost || r.NeverConnected })
	missing := slices.DeleteFunc(slices.Clone(known), func(r Region) bool { return r.Connected })
	return s.Earlier != "" && s.Active < s.LeaseMax+s.Quiet()+2*time.Second && len(missing) >= 3 && len(missing)*3 > len(known)
}

func drawSnapshot(t *rapid.T) Snapshot {
	second := func(name string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, name)) * time.Second
	}
	s := Snapshot{Lease: second("lease", 30) + time.Second, Active: second("active", 200), OtherServers: rapid.IntRange(0, 2).Draw(t, "others")}
	s.LeaseMax = s.Lease + second("longest", 30)
	s.Calm = min(s.Active, second("calm", 200))
	s.Resigned = rapid.Bool().Draw(t, "resigned")
	s.Unconfirmed = rapid.SampledFrom([][]string{nil, nil, nil, {"r1"}, {"r1", "r7"}}).Draw(t, "unconfirmed")
	s.Earlier = rapid.SampledFrom([]string{"", "earlier"}).Draw(t, "earlier")
	for i := range rapid.IntRange(1, 9).Draw(t, "regions") {
		r := Region{Name: fmt.Sprintf("r%d", i)}
		r.Silent = min(s.Active, second("silent", 90))
		switch rapid.SampledFrom([]string{"connected", "cut", "cut", "lost", "nothing", "never"}).Draw(t, "kind") {
		case "connected":
			r.Connected = true
		case "lost":
			r.Lost = true
		case "nothing":
			r.Lost, r.NothingRuns = true, true
		case "never":
			r.NeverConnected = true
		}
		for k := range rapid.IntRange(0, 4).Draw(t, "slots") {
			r.Slots = append(r.Slots, Slot{
				Namespace: "default", Job: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "job"), Group: "g", From: k, To: k + 1,
				After: second("after", 90), Replace: rapid.IntRange(0, 5).Draw(t, "replace") > 0, Stop: rapid.Bool().Draw(t, "stop"),
				Bound: rapid.Bool().Draw(t, "bound"), BoundFor: second("bound for", 90), Unbound: rapid.IntRange(0, 3).Draw(t, "unbound") == 0,
				Set:  rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(t, "set"),
				Done: rapid.IntRange(0, 7).Draw(t, "done") == 0, System: rapid.IntRange(0, 9).Draw(t, "system") == 0,
				Stopping: rapid.IntRange(0, 7).Draw(t, "stopping") == 0,
			})
		}
		s.Regions = append(s.Regions, r)
	}
	return s
}
