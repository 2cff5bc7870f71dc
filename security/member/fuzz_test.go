package member

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// FuzzGoals: whatever a server says that a member should have, the member renews its certificate in time,
// and what it reports of itself stays the same.
func FuzzGoals(f *testing.F) {
	source := pkitest.New(f).Source("region/a/agent/n1")
	for _, g := range []*nusav1.KeyGoal{
		{}, {Version: 1, Want: &nusav1.KeyState{Roots: []string{"r"}, Gossip: []string{"g"}}, Spread: durationpb.New(math.MaxInt64)},
		{Want: &nusav1.KeyState{Issuer: "x"}, Spread: durationpb.New(math.MinInt64)}, {Spread: &durationpb.Duration{Seconds: math.MaxInt64, Nanos: -7}},
	} {
		raw, err := proto.Marshal(g)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, 0.5)
	}
	f.Fuzz(func(t *testing.T, raw []byte, point float64) {
		goal := &nusav1.KeyGoal{}
		if proto.Unmarshal(raw, goal) != nil || !(point >= 0 && point < 1) {
			return
		}
		orders := &Orders{}
		orders.Set(goal)
		r := &Renewer{Source: source, Orders: orders, Log: slog.New(slog.DiscardHandler), point: point}
		begin := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
		end := begin.Add(pki.Backdate + 10*time.Hour)
		first, early := r.due(begin, end, begin.Add(pki.Backdate+time.Hour))
		if early && !first.Early {
			t.Fatal("the certificate has lived for a tenth of its time, and counts as due")
		}
		last, due := r.due(begin, end, begin.Add(pki.Backdate+8*time.Hour))
		if !due || last.Early {
			t.Fatalf("the certificate is not renewed in time because of %v", goal)
		}
		if textOf(first.Has) != textOf(last.Has) {
			t.Fatalf("the member has %+v, and then %+v", first.Has, last.Has)
		}
	})
}
