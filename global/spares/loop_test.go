package spares

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/reservations"
	"github.com/nusa-scheduler/nusa/global/spares/step"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// newBook returns a book with one spare that waits for its first reservation.
func newBook(t *testing.T) (*Book, *nusav1.SpareRecord) {
	t.Helper()
	mem := store.NewMemory().Client()
	e, err := mem.Campaign(t.Context(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), mem); err != nil {
		t.Fatal(err)
	}
	commit := state.NewCommitter(st, mem, e.Guard())
	term := api.NewTerm(api.TermConfig{Context: t.Context(), State: st, Store: mem, Commit: commit, Log: slog.New(slog.DiscardHandler)})
	b := New(Config{Term: term, Reservations: reservations.New(reservations.Config{Term: term, Retention: time.Hour}), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = commit.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; mem.Close() })
	rec := &nusav1.SpareRecord{Rounds: []int32{1}, Spare: &nusav1.Spare{
		Id: "s1", State: nusav1.SpareState_SPARE_STATE_RESERVING, Deadline: timestamppb.New(time.Now().Add(time.Hour)), Hosts: []*nusav1.SpareHost{{State: step.Waiting.String()}},
		Request: &nusav1.PrepareSpareRequest{Namespace: "default", Pool: "default", Count: 1, CpuMilli: 100, MemoryBytes: 1 << 20, Hold: durationpb.New(time.Hour)},
	}}
	b.write(t, rec)
	return b, rec
}

// write stores a record.
func (b *Book) write(t *testing.T, rec *nusav1.SpareRecord) {
	t.Helper()
	if _, err := b.cfg.Term.Commit.Do(t.Context(), func(t *state.Tx) error { return state.PutOther(t, recordKey(rec.GetSpare().GetId()), rec) }); err != nil {
		t.Fatal(err)
	}
}

// held reports whether the first place has a reservation.
func (b *Book) held(t *testing.T, rec *nusav1.SpareRecord) (yes bool) {
	t.Helper()
	if _, err := b.cfg.Term.Commit.Do(t.Context(), func(t *state.Tx) error {
		yes = b.cfg.Reservations.Exists(t, reservationIDs(rec)[0])
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return yes
}

// TestPages: a token that no list has returned is refused.
func TestPages(t *testing.T) {
	b, _ := newBook(t)
	close(b.ready)
	s := &Service{Current: func() *Book { return b }}
	for token, want := range map[string]codes.Code{"": codes.OK, reservations.IDOf("default", "a"): codes.OK, "zzz": codes.InvalidArgument} {
		if _, err := s.List(t.Context(), &nusav1.ListSparesRequest{PageToken: token}); status.Code(err) != want {
			t.Errorf("%q: %v", token, err)
		}
	}
}

// TestNoReservationAfterTheEnd: a reservation whose transaction runs after the spare was cancelled is not
// made, because nobody would release it.
func TestNoReservationAfterTheEnd(t *testing.T) {
	for state, want := range map[nusav1.SpareState]bool{
		nusav1.SpareState_SPARE_STATE_RESERVING: true, nusav1.SpareState_SPARE_STATE_RELEASING: false, nusav1.SpareState_SPARE_STATE_CANCELLED: false,
	} {
		b, rec := newBook(t)
		now := encode(rec, decode(rec), time.Now())
		now.Spare.State = state
		b.write(t, now)
		b.reserve(t.Context(), b.byID["s1"], rec, step.Reserve{Place: 0, Round: 1})
		if got := b.held(t, rec); got != want || len(b.byID["s1"].refused) > 0 {
			t.Errorf("%v: reserved %v, refused %v", state, got, b.byID["s1"].refused)
		}
	}
}

// TestNoEndOverAReservation: a step that takes a reservation for absent is not stored once the reservation
// exists. The next step sees it and releases it.
func TestNoEndOverAReservation(t *testing.T) {
	b, _ := newBook(t)
	rec := b.byID["s1"].rec
	past := step.Input{Now: time.Now().Add(2 * time.Hour), Reservations: make([]step.Reservation, 1)}
	if next, _ := step.Step(b.configOf(rec), decode(rec), past); !next.Phase.Ended() {
		t.Fatalf("the step leads to %v: the test needs one that ends the spare", next.Phase)
	}
	b.reserve(t.Context(), b.byID["s1"], rec, step.Reserve{Place: 0, Round: 1})
	if _, ok := b.store(t.Context(), "s1", rec, past); ok {
		t.Error("the spare has ended, and its reservation is held")
	}
	past.Reservations[0].Known = step.Open
	effects, ok := b.store(t.Context(), "s1", rec, past)
	frees := 0
	for _, e := range effects {
		if _, is := e.(step.Free); is {
			frees++
		}
	}
	if !ok || frees != 1 || b.byID["s1"].rec.GetSpare().GetState() != nusav1.SpareState_SPARE_STATE_RELEASING {
		t.Errorf("the next step: %v, %v, %v", ok, effects, b.byID["s1"].rec)
	}
}
