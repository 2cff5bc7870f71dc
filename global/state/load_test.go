package state

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// failing is a store whose transactions fail after the first `left` ones.
type failing struct {
	store.Store
	left int
}

var errDied = errors.New("the server died")

func (f *failing) Txn(ctx context.Context, compares []store.Compare, ops []store.Op) (int64, error) {
	if f.left == 0 {
		return 0, errDied
	}
	f.left--
	return f.Store.Txn(ctx, compares, ops)
}

// TestTheTermAfterARecoveryOffersEverySlotAgain: the server offers every slot again, also if an
// earlier server died in the middle. The conflict ends afterwards. The owners may run a version
// that no lease binds, or a version that takes longer to stop. The slots belong to the same run as
// before.
func TestTheTermAfterARecoveryOffersEverySlotAgain(t *testing.T) {
	const slots = 2*commitOps + 10
	c := store.NewMemory().Client()
	defer c.Close()
	put := func(key string, value []byte) int64 {
		t.Helper()
		revision, err := c.Txn(t.Context(), nil, []store.Op{store.Put(key, value)})
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	encode := func(s *nusav1.Slot) []byte {
		t.Helper()
		value, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	former := []*nusav1.FormerOwner{{Region: "seoul", Generation: 2, Hold: true}}
	var submitted []int64 // by index
	for i := range int32(slots) {
		submitted = append(submitted, put(fmt.Sprintf("%sdefault/api/web/%d", slotPrefix, i), encode(&nusav1.Slot{Namespace: "default", Job: "api", Group: "web", From: i, To: i + 1, Generation: 7, RunBegins: true, Former: former, StopTime: durationpb.New(time.Second)})))
	}
	put(ClusterKey, []byte("fed"))
	rec, err := Encode(&nusav1.LeadershipRecord{Term: &nusav1.LeadershipTerm{Number: 3}, Conflict: &nusav1.RevisionConflict{Known: 500, Recovered: true},
		Recovery: &nusav1.Recovery{StopTime: durationpb.New(time.Minute)}})
	if err != nil {
		t.Fatal(err)
	}
	last := put(leadershipKey, rec)
	guard := store.Mod(ElectionPrefix+"a", put(ElectionPrefix+"a", nil))
	elected := Elected{Guard: guard, Federation: "fed", Lease: time.Second, Candidacy: time.Second}
	renewed := func() (n int) {
		t.Helper()
		if _, err := c.List(t.Context(), slotPrefix, func(kv store.KV) error {
			var s nusav1.Slot
			if err := Decode(kv, &s); err != nil {
				return err
			}
			if s.GetGeneration() == 0 && !s.GetRunBegins() && s.GetRun() == submitted[s.GetFrom()] && s.GetUnbound() && s.GetStopTime().AsDuration() == time.Minute && kv.ModRevision > last && s.GetFormer()[0].GetGeneration() == 2 && s.GetFormer()[0].GetMayRun() {
				n++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	conflict := func() bool {
		t.Helper()
		kv, _, _, err := c.Get(t.Context(), leadershipKey)
		if err != nil {
			t.Fatal(err)
		}
		var rec nusav1.LeadershipRecord
		if err := Decode(kv, &rec); err != nil {
			t.Fatal(err)
		}
		return rec.GetConflict() != nil
	}
	for _, died := range []struct{ after, renewed int }{{0, 0}, {1, commitOps}, {3, slots}} {
		if _, err := BeginTerm(t.Context(), &failing{c, died.after}, elected); !errors.Is(err, errDied) {
			t.Fatalf("after %d transactions: %v", died.after, err)
		}
		if n := renewed(); n != died.renewed || !conflict() {
			t.Errorf("after %d transactions %d slots are new offers, conflict %v", died.after, n, conflict())
		}
	}
	if _, err := BeginTerm(t.Context(), c, elected); err != nil {
		t.Fatal(err)
	}
	if n := renewed(); n != slots || conflict() {
		t.Errorf("at the end %d slots are new offers, conflict %v", n, conflict())
	}
	_, _, before, err := c.Get(t.Context(), leadershipKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := BeginTerm(t.Context(), c, elected); err != nil {
		t.Fatal(err)
	}
	if _, _, after, err := c.Get(t.Context(), leadershipKey); err != nil || after != before+1 {
		t.Errorf("a term without a recovery wrote up to revision %d after %d: %v", after, before, err)
	}
}

// TestRecoveryAsksTheLastOwnerOfAVacantSlot: in the copy jakarta has given its slot up, but jakarta
// may have owned the slot again after the copy was made. So the slot does not return to seoul, which
// still holds it, before jakarta has confirmed that it runs nothing. A region that was removed
// confirms nothing.
func TestRecoveryAsksTheLastOwnerOfAVacantSlot(t *testing.T) {
	c := store.NewMemory().Client()
	defer c.Close()
	put := func(key string, m proto.Message) int64 {
		t.Helper()
		value, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		revision, err := c.Txn(t.Context(), nil, []store.Op{store.Put(key, value)})
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	vacant := func(owner string, from int32) string {
		key := fmt.Sprintf("%sdefault/api/web/%d", slotPrefix, from)
		put(key, &nusav1.Slot{Namespace: "default", Job: "api", Group: "web", From: from, To: from + 1, Generation: 7, Region: owner, Vacant: true,
			Desired: nusav1.SlotDesired_SLOT_DESIRED_REVOKE,
			Former:  []*nusav1.FormerOwner{{Region: "seoul", Generation: 2, Hold: true, MayRun: true}, {Region: owner, Generation: 5, MayRun: true}}})
		return key
	}
	jakarta, removed := vacant("jakarta", 0), vacant("removed", 1)
	put(RegionPrefix+"jakarta", &nusav1.Region{ClusterId: "j"})
	if _, err := c.Txn(t.Context(), nil, []store.Op{store.Put(ClusterKey, []byte("fed"))}); err != nil {
		t.Fatal(err)
	}
	put(leadershipKey, &nusav1.LeadershipRecord{Term: &nusav1.LeadershipTerm{Number: 3}, Conflict: &nusav1.RevisionConflict{Known: 500, Recovered: true}})
	guard := store.Mod(ElectionPrefix+"a", put(ElectionPrefix+"a", &nusav1.GlobalServer{}))
	if _, err := BeginTerm(t.Context(), c, Elected{Guard: guard, Federation: "fed", Lease: time.Second, Candidacy: time.Second}); err != nil {
		t.Fatal(err)
	}
	stored := func(key string) region.Slot {
		t.Helper()
		kv, _, _, err := c.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		var s nusav1.Slot
		if err := Decode(kv, &s); err != nil {
			t.Fatal(err)
		}
		return slotFromProto(key, &s, kv.ModRevision)
	}
	if s := stored(removed); !s.Vacant || len(s.Former) != 2 {
		t.Errorf("the slot of the removed region: %+v", s)
	}
	s := stored(jakarta)
	if s.Vacant || len(s.Former) != 1 {
		t.Fatalf("the slot of jakarta: %+v", s)
	}
	kept := region.ApplyAnswer([]region.Slot{s}, "seoul", region.Answer{Namespace: "default", Job: "api", Group: "web", From: 0, To: 1, Generation: 2, State: region.Kept})
	if len(kept.Changes) != 1 || kept.Changes[0].Slot.Region != "jakarta" || kept.Changes[0].Slot.ReturnTo != "seoul" {
		t.Fatalf("seoul holds the slot: %+v", kept)
	}
	over := region.ApplyAnswer([]region.Slot{kept.Changes[0].Slot}, "jakarta", region.Answer{Namespace: "default", Job: "api", Group: "web", From: 0, To: 1, Generation: s.Generation, State: region.Revoked})
	if len(over.Changes) != 1 || over.Changes[0].Slot.Region != "seoul" {
		t.Errorf("jakarta has confirmed: %+v", over)
	}
}

// TestSteadyJobsAreNotPlannedAfterALoad: a term begins with the jobs that the placer has to look at. A job
// with all its instances in place is not among them. See also package sim/world, where new terms place
// everything.
func TestSteadyJobsAreNotPlannedAfterALoad(t *testing.T) {
	whole := region.Slot{Namespace: "default", Job: "api", Group: "web", From: 0, To: 4, Region: "oslo", State: region.Accepted, Desired: region.DesiredRun, Generation: 3, JobVersion: 1, Run: 2}
	slots := func(change func(s *region.Slot)) []region.Slot {
		s := whole
		change(&s)
		return []region.Slot{s}
	}
	half := slots(func(s *region.Slot) { s.To = 2 })
	job := func(change func(*nusav1.JobRecord)) *nusav1.JobRecord {
		rec := &nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 4), Version: 1}}
		change(rec)
		return rec
	}
	same := job(func(*nusav1.JobRecord) {})
	at := func(change func(*nusav1.Region)) *nusav1.Region {
		r := &nusav1.Region{ClusterId: "o"}
		change(r)
		return r
	}
	oslo := at(func(*nusav1.Region) {})
	for _, c := range []struct {
		what   string
		job    *nusav1.JobRecord
		region *nusav1.Region
		slots  []region.Slot
		steady bool
	}{
		{"all in place", same, oslo, []region.Slot{whole}, true},
		{"not answered yet", same, oslo, slots(func(s *region.Slot) { s.State = region.Offered }), true},
		{"two slots", same, oslo, append(slots(func(s *region.Slot) { s.From = 2 }), half...), true},
		{"no slot", same, oslo, nil, false},
		{"two instances are missing", same, oslo, half, false},
		{"one instance too many", same, oslo, slots(func(s *region.Slot) { s.To = 5 }), false},
		{"ended", same, oslo, slots(func(s *region.Slot) { s.State = region.Done }), false},
		{"is revoked", same, oslo, slots(func(s *region.Slot) { s.Desired = region.DesiredRevoke }), false},
		{"vacant", same, oslo, slots(func(s *region.Slot) { s.Vacant = true }), false},
		{"not at home", same, oslo, slots(func(s *region.Slot) { s.Home = "rome" }), false},
		{"of another run", same, oslo, slots(func(s *region.Slot) { s.Run = 1 }), false},
		{"of a removed region", same, oslo, slots(func(s *region.Slot) { s.Region = "rome" }), false},
		{"of a removed group", same, oslo, slots(func(s *region.Slot) { s.Group = "db" }), false},
		{"stopped", job(func(r *nusav1.JobRecord) { r.Job.Stopped = true }), oslo, []region.Slot{whole}, false},
		{"a later version", job(func(r *nusav1.JobRecord) { r.Job.Version, r.Job.Run = 2, 2 }), oslo, []region.Slot{whole}, false},
		{"a system job", job(func(r *nusav1.JobRecord) { r.Job.Spec.Type = nusav1.JobType_JOB_TYPE_SYSTEM }), oslo, []region.Slot{whole}, false},
		{"the region drains", same, at(func(r *nusav1.Region) { r.Draining = true }), []region.Slot{whole}, false},
		{"the region gets its instances back", same, at(func(r *nusav1.Region) { r.Returning = true }), []region.Slot{whole}, false},
		{"the region is lost", same, at(func(r *nusav1.Region) { r.Lost = &nusav1.LostRegion{} }), []region.Slot{whole}, false},
	} {
		st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
		st.loading = true
		st.apply(RegionPrefix+"oslo", c.region, 1)
		st.apply(jobPrefix+"default/api", c.job, 2)
		for i, s := range c.slots {
			st.apply(slotPrefix+s.Key(), SlotToProto(s), int64(3+i))
		}
		st.pendUnsteady()
		_, pending := st.Pending[JobKey{"default", "api"}]
		if _, fresh := st.Fresh[JobKey{"default", "api"}]; pending == c.steady || fresh != pending {
			t.Errorf("%s: pending %t, fresh %t", c.what, pending, fresh)
		}
	}
}
