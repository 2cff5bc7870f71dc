package repair

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/drift"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxSuspects bounds the records that one comparison examines closely.
const maxSuspects = 1000

// memory compares the jobs, slots and regions in memory with the store.
func (r *Repairer) memory(ctx context.Context) *nusav1.ReconcileResult {
	out := r.result("")
	suspects, err := r.suspects(ctx, out)
	for _, key := range suspects {
		if err == nil {
			err = r.examine(ctx, key, out)
		}
	}
	if err != nil && ctx.Err() == nil {
		out.out.Skipped = fmt.Sprintf("the store was not compared completely: %v", err)
		r.Log.Warn("the memory is not compared with the store", "error", err)
	}
	return out.end()
}

// suspects returns the keys of records that may differ. A write that is in flight makes its record a
// suspect, too.
func (r *Repairer) suspects(ctx context.Context, to *result) (suspects []string, err error) {
	seed, seen := maphash.MakeSeed(), map[uint64]struct{}{}
	revision := int64(0)
	for _, prefix := range state.Compared {
		at, err := r.Store.List(ctx, prefix, func(kv store.KV) error {
			seen[maphash.String(seed, kv.Key)] = struct{}{}
			to.out.Compared++
			r.State.Lock()
			held := state.HeldRevision(r.State, kv.Key)
			r.State.Unlock()
			if held != kv.ModRevision && len(suspects) < maxSuspects {
				suspects = append(suspects, kv.Key)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if revision == 0 {
			revision = at
		}
	}
	state.HeldKeys(r.State, func(key string, held int64) {
		if _, stored := seen[maphash.String(seed, key)]; !stored && held <= revision && len(suspects) < maxSuspects {
			suspects = append(suspects, key)
		}
	})
	return suspects, nil
}

var (
	// errSame says that a record does not differ.
	errSame = errors.New("no difference")
	// errStale says that the store may have changed after a record was read.
	errStale = errors.New("changed")
)

// tries bounds how often a record is read again because the store has changed. After that the next
// comparison reads it.
const tries = 5

// examine compares one record while no transaction is in flight, and repairs it.
func (r *Repairer) examine(ctx context.Context, key string, to *result) error {
	err := errStale
	for n := 0; n < tries && errors.Is(err, errStale); n++ {
		err = r.examineOnce(ctx, key, to)
	}
	if errors.Is(err, errStale) || errors.Is(err, errSame) {
		return nil
	}
	return err
}

func (r *Repairer) examineOnce(ctx context.Context, key string, to *result) error {
	kv, _, revision, err := r.Store.Get(ctx, key)
	if err != nil {
		return err
	}
	var d *drift.Difference
	_, err = r.Commit.Do(ctx, func(tx *state.Tx) error {
		held := state.HeldRevision(tx.State, key)
		switch {
		case held == kv.ModRevision:
			return errSame
		case tx.State.Revision > revision: // a later transaction may have written or removed the record
			return errStale
		}
		d = &drift.Difference{Kind: drift.Old, Key: key, Want: uint64(kv.ModRevision), Have: uint64(held)}
		switch {
		case held == 0:
			d.Kind = drift.Lacks
		case kv.ModRevision == 0:
			d.Kind = drift.Stray
		}
		return state.Reload(tx.State, key, kv)
	})
	if err == nil && d != nil {
		to.repaired("memory_"+string(d.Kind), key, d.String(), "the record was read from the store again")
	}
	return err
}
