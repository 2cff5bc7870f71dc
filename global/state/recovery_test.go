package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWorkToLose: a recovery of the store would stop the instances that the regions run and the
// restored store does not assign to them.
func TestWorkToLose(t *testing.T) {
	st := New(Beginning{}, func() time.Duration { return 0 })
	for _, name := range []string{"jakarta", "seoul", "tokyo"} {
		st.Regions[name] = &Region{Name: name, Record: &nusav1.Region{ClusterId: "c"}}
	}
	st.RegionsChanged()
	slot := func(job, owner string, from, to int, former ...region.FormerOwner) {
		k := JobKey{"default", job}
		j := st.job(k)
		j.Record = recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Version: 3}})
		s := region.Slot{Namespace: "default", Job: job, Group: "web", From: from, To: to, Region: owner,
			Desired: region.DesiredRun, State: region.Accepted, Former: former}
		j.Slots.Put(&s)
	}
	slot("api", "tokyo", 0, 2)
	slot("api", "seoul", 2, 4, region.FormerOwner{Region: "tokyo", Hold: true})
	slot("api", "seoul", 4, 6, region.FormerOwner{Region: "tokyo"})
	hello := func(name string, work ...string) {
		h := &nusav1.RegionHello{Definition: &nusav1.RegionDefinition{Name: name}, WorkLeftOut: 1}
		for _, text := range work {
			w := &nusav1.RegionWork{Namespace: "default", Group: "web"}
			if _, err := fmt.Sscanf(text, "%s %d-%d v%d", &w.Job, &w.From, &w.To, &w.JobVersion); err != nil {
				t.Fatal(err)
			}
			h.Work = append(h.Work, w)
		}
		st.NoteWork(h)
	}
	expect := func(what string, leftOut int32, silent []string, want ...string) {
		t.Helper()
		lost, left, not := st.WorkToLose()
		var got []string
		for _, l := range lost {
			if l.GetNamespace() != "default" || l.GetGroup() != "web" {
				t.Errorf("%s: %v", what, l)
			}
			got = append(got, fmt.Sprintf("%s %s %d v%d of v%d", l.GetRegion(), l.GetJob(), l.GetInstances(), l.GetJobVersion(), l.GetStoredVersion()))
		}
		if !slices.Equal(got, want) || left != leftOut || !slices.Equal(not, silent) {
			t.Errorf("%s: got %q, %d left out, silent %q, want %q, %d, %q", what, got, left, not, want, leftOut, silent)
		}
	}
	hello("tokyo")
	hello("seoul")
	expect("both were only asked", 0, []string{"jakarta", "seoul", "tokyo"})
	hello("seoul")
	hello("tokyo", "later 0-3 v1", "api 0-6 v3", "later 5-6 v1")
	expect("tokyo runs more, seoul nothing", 2, []string{"jakarta"}, "tokyo api 2 v3 of v3", "tokyo later 4 v1 of v0")
	starts := func(want ...string) {
		t.Helper()
		var got []string
		for _, l := range st.WorkToStart() {
			got = append(got, fmt.Sprintf("%s %s %d v%d", l.GetRegion(), l.GetJob(), l.GetInstances(), l.GetStoredVersion()))
		}
		if !slices.Equal(got, want) {
			t.Errorf("starts %q, want %q", got, want)
		}
	}
	leftOut := func(n int32) {
		r := st.reported["seoul"]
		r.leftOut = n
		st.reported["seoul"] = r
	}
	starts() // the regions have not named all slots
	leftOut(0)
	starts("seoul api 4 v0")
	hello("seoul", "api 2-4 v5")
	leftOut(0)
	starts("seoul api 2 v0")
	tokyo := st.reported["tokyo"]
	st.reported["tokyo"] = reportedWork{said: true} // runs nothing
	starts("seoul api 2 v0", "tokyo api 2 v0")
	st.reported["tokyo"] = tokyo
	leftOut(1)
	hello("tokyo", "api 0-2 v3")
	expect("seoul has a later version", 2, []string{"jakarta"}, "seoul api 0 v5 of v3")
	st.Regions["jakarta"].Record = proto.CloneOf(st.Regions["jakarta"].Record)
	st.Regions["jakarta"].Record.ClusterId = ""
	expect("jakarta has never connected, as far as the copy says", 2, []string{"jakarta"}, "seoul api 0 v5 of v3")
}

// TestSecondRecoveryKeepsWhatTheFirstWaitsFor: a region that the store does not know has not
// confirmed what it runs when the store must be recovered again.
func TestSecondRecoveryKeepsWhatTheFirstWaitsFor(t *testing.T) {
	st := New(Beginning{}, func() time.Duration { return 0 })
	st.Leadership = &nusav1.LeadershipRecord{
		Term:     &nusav1.LeadershipTerm{Number: 3},
		Recovery: &nusav1.Recovery{StopTime: durationpb.New(time.Minute), Unconfirmed: []string{"unknown"}},
		Conflict: &nusav1.RevisionConflict{Region: "tokyo", Known: 9},
	}
	tx := NewTx(st)
	if err := tx.Recover(); err != nil {
		t.Fatal(err)
	}
	ch, _ := tx.find(leadershipKey)
	r := ch.msg.(*nusav1.LeadershipRecord).GetRecovery()
	if !slices.Equal(r.GetUnconfirmed(), []string{"tokyo", "unknown"}) || r.GetStopTime().AsDuration() != time.Minute {
		t.Errorf("the recovery waits for %v", r)
	}
}

// TestRegionThatWasLostConfirmsToo: the copy of the store says that nothing runs in a region, or
// that no cluster has connected under its name, or does not have the region. The region may have
// been set up since the copy, so a recovery waits for the region.
func TestRegionThatWasLostConfirmsToo(t *testing.T) {
	st := New(Beginning{}, func() time.Duration { return 0 })
	st.Regions["jakarta"] = &Region{Name: "jakarta", Record: &nusav1.Region{ClusterId: "c", Lost: &nusav1.LostRegion{NothingRuns: true}}}
	st.Regions["mars"] = &Region{Name: "mars", Record: &nusav1.Region{}} // had not connected when the copy was made
	st.KnownRegions = []string{"osaka"}
	if got := st.toConfirm(); !slices.Equal(got, []string{"jakarta", "mars", "osaka"}) {
		t.Errorf("a recovery waits for %q", got)
	}
}

// TestRegionSaysThatItIsRefused: while the store waits for its recovery, the note of a region says
// whether its servers reach this server.
func TestRegionSaysThatItIsRefused(t *testing.T) {
	st := New(Beginning{}, func() time.Duration { return 0 })
	r := &Region{Name: "jakarta", Record: &nusav1.Region{ClusterId: "c"}}
	st.Regions["jakarta"] = r
	note := func() string { return r.ToProto(Sight{st: st}).GetFailoverMessage() }
	st.Leadership = &nusav1.LeadershipRecord{Conflict: &nusav1.RevisionConflict{Region: "tokyo", Known: 9}}
	hello := &nusav1.RegionHello{Definition: &nusav1.RegionDefinition{Name: "jakarta"}}
	for _, want := range []string{
		"it has not called since the election: is the network to its servers whole?",
		"it has called, and will say what it runs when it calls again: it waits for `nusa server recover`",
		"it has called and said what it runs: it waits for `nusa server recover`",
	} {
		if got := note(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		st.NoteWork(hello)
		hello.Work = []*nusav1.RegionWork{{Namespace: "default", Job: "api", Group: "web", To: 1, JobVersion: 1}}
	}
	st.Leadership.Conflict.Recovered = true
	if got := note(); got != "" {
		t.Errorf("after the recovery: %q", got)
	}
}

// TestLossDoesNotSpeakForAnotherCluster: after a recovery an operator states that nothing runs in a
// region. If another cluster of that name has called, it has to confirm itself what it runs.
func TestLossDoesNotSpeakForAnotherCluster(t *testing.T) {
	for _, other := range []bool{false, true} {
		st := New(Beginning{}, func() time.Duration { return 0 })
		st.Leadership = &nusav1.LeadershipRecord{Term: &nusav1.LeadershipTerm{Number: 3}, Recovery: &nusav1.Recovery{Unconfirmed: []string{"jakarta", "tokyo"}}}
		st.Regions["jakarta"] = &Region{Name: "jakarta", Record: &nusav1.Region{ClusterId: "old"}, Revision: 5, OtherCluster: other}
		tx := NewTx(st)
		if err := tx.DeclareLost("jakarta", Loss{Why: "it burned", By: "me", NothingRuns: true}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		confirmed := false
		if ch, changed := tx.find(leadershipKey); changed {
			confirmed = slices.Equal(ch.msg.(*nusav1.LeadershipRecord).GetRecovery().GetUnconfirmed(), []string{"tokyo"})
		}
		if confirmed == other {
			t.Errorf("another cluster has called: %t, confirmed: %t", other, confirmed)
		}
	}
}
