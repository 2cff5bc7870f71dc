package state

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

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
