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
