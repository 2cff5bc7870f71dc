package reservations

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestForgetsAfterAFailure: old records whose removal fails once are removed later.
func TestForgetsAfterAFailure(t *testing.T) {
	mem := store.NewMemory().Client()
	defer mem.Close()
	e, err := mem.Campaign(t.Context(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), mem); err != nil {
		t.Fatal(err)
	}
	commit := state.NewCommitter(st, mem, e.Guard())
	b := New(Config{Term: api.NewTerm(api.TermConfig{State: st, Store: mem, Commit: commit}), Retention: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = commit.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	now := time.Now()
	const many = 2*together + 5
	for i := range many {
		rec := &nusav1.ReservationRecord{Reservation: &nusav1.Reservation{
			Id: fmt.Sprintf("id-%03d", i), State: nusav1.ReservationState_RESERVATION_STATE_RELEASED, Ended: timestamppb.New(now),
		}}
		if _, err := commit.Do(ctx, func(t *state.Tx) error { return state.PutOther(t, recordKey(rec.GetReservation().GetId()), rec) }); err != nil {
			t.Fatal(err)
		}
	}
	failing, end := context.WithCancel(ctx)
	end()
	b.cfg.Term.Commit = state.NewCommitter(st, mem, e.Guard()) // does not run
	b.forget(failing, now.Add(2*time.Hour))
	b.cfg.Term.Commit = commit
	b.forget(ctx, now.Add(2*time.Hour))
	if left, _ := b.filter("", many, func(*nusav1.Reservation) bool { return true }); len(left) > 0 {
		t.Errorf("%d of %d records are left", len(left), many)
	}
}
