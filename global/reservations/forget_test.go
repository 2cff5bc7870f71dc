package reservations

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// newBook returns a book with reservations that ended now. broken is a committer that does not run.
func newBook(t *testing.T, many int, fill func(*nusav1.Reservation)) (b *Book, broken *state.Committer, now time.Time) {
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
	b = New(Config{Term: api.NewTerm(api.TermConfig{Context: t.Context(), State: st, Store: mem, Commit: commit, Log: slog.New(slog.DiscardHandler)}), Retention: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = commit.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; mem.Close() })
	now = time.Now()
	for i := range many {
		rec := &nusav1.ReservationRecord{Reservation: &nusav1.Reservation{
			Id: fmt.Sprintf("id-%03d", i), State: nusav1.ReservationState_RESERVATION_STATE_RELEASED, Ended: timestamppb.New(now),
		}}
		fill(rec.GetReservation())
		if _, err := commit.Do(ctx, func(t *state.Tx) error { return state.PutOther(t, recordKey(rec.GetReservation().GetId()), rec) }); err != nil {
			t.Fatal(err)
		}
	}
	return b, state.NewCommitter(st, mem, e.Guard()), now
}

func (b *Book) left() (ids []string) {
	all, _ := b.filter("", 1000, func(*nusav1.Reservation) bool { return true })
	for _, r := range all {
		ids = append(ids, r.GetId())
	}
	return ids
}

// TestPages: a token that no list has returned is refused.
func TestPages(t *testing.T) {
	b, _, _ := newBook(t, 0, func(*nusav1.Reservation) {})
	close(b.ready)
	s := &Service{Current: func() *Book { return b }}
	for token, want := range map[string]codes.Code{"": codes.OK, IDOf("default", "a"): codes.OK, "zzz": codes.InvalidArgument, "2": codes.InvalidArgument} {
		if _, err := s.List(t.Context(), &nusav1.ListReservationsRequest{PageToken: token}); status.Code(err) != want {
			t.Errorf("%q: %v", token, err)
		}
	}
}

// TestForgetsAfterAFailure: old records whose removal fails once are removed later.
func TestForgetsAfterAFailure(t *testing.T) {
	b, broken, now := newBook(t, 2*together+5, func(*nusav1.Reservation) {})
	failing, end := context.WithCancel(t.Context())
	end()
	works, bytes := b.cfg.Term.Commit, b.bytes
	b.cfg.Term.Commit = broken // does not run
	b.forget(failing, now.Add(2*time.Hour))
	if b.bytes != bytes {
		t.Errorf("%d bytes, want %d", b.bytes, bytes)
	}
	b.cfg.Term.Commit = works
	b.forget(t.Context(), now.Add(2*time.Hour))
	if left := b.left(); len(left) > 0 || b.bytes != 0 {
		t.Errorf("%d records are left, %d bytes", len(left), b.bytes)
	}
}

// TestEndedRecordsAreBounded: many large requests of reservations that have ended do not fill the store.
func TestEndedRecordsAreBounded(t *testing.T) {
	b, _, now := newBook(t, 40, func(r *nusav1.Reservation) {
		r.Request = &nusav1.CreateReservationRequest{Constraints: []string{strings.Repeat("x", 10_000)}}
	})
	b.most = 100_000
	b.forget(t.Context(), now)
	if left := b.left(); len(left) != 9 || left[0] != "id-031" || b.bytes > b.most {
		t.Errorf("%v are left, %d bytes", left, b.bytes)
	}
	if claimed := (&nusav1.Reservation{Claim: &nusav1.ReservationClaim{By: "x"}}); sizeOf(&nusav1.ReservationRecord{Reservation: claimed}) < maxText {
		t.Error("the text of a claim does not count")
	}
}

// TestNoJobWithoutItsRecord: a submit that is repeated because a record must be read first stores the
// reservation, too. The job alone would hold its room for ever.
func TestNoJobWithoutItsRecord(t *testing.T) {
	b, _, _ := newBook(t, 0, func(*nusav1.Reservation) {})
	asked := 0
	made, err := b.OpenIf(t.Context(), &nusav1.CreateReservationRequest{CpuMilli: 1, MemoryBytes: 1 << 20}, func(*state.Tx) error {
		if asked++; asked == 1 {
			return state.ErrRecall
		}
		return nil
	})
	if err != nil || b.find(made.GetId()) == nil || b.st.Jobs[keyOf(made)] == nil {
		t.Errorf("%v is stored as %v: %v", made, b.find(made.GetId()), err)
	}
	if asked != 2 {
		t.Errorf("the transaction was prepared %d times", asked)
	}
}
