package member

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// TestRenewalsForOrders: a member renews early while it lacks something, and once more to report what it
// has then. Without orders it renews only in time.
func TestRenewalsForOrders(t *testing.T) {
	ca := pkitest.New(t)
	source := ca.Source("region/a/server/s1")
	orders := &Orders{}
	r := &Renewer{Source: source, Orders: orders, Log: slog.New(slog.DiscardHandler), point: 0.5}
	now := time.Now()
	begin, end := now.Add(-pki.Backdate), now.Add(time.Hour)
	is := func(what string, at time.Time, early, due bool) Renewal {
		t.Helper()
		got, ok := r.due(begin, end, at)
		if ok != due || got.Early != early {
			t.Errorf("%s: due %v, early %v", what, ok, got.Early)
		}
		return got
	}
	is("without a goal", now, true, false)
	is("in time", now.Add(50*time.Minute), false, true)

	goal := &nusav1.KeyGoal{Version: 1, Want: &nusav1.KeyState{Gossip: []string{"k1"}, Issuer: pki.Fingerprint(ca.Root.Cert)}, Spread: durationpb.New(time.Minute)}
	orders.Set(goal)
	orders.Set(nil) // a message without a goal says nothing
	is("the goal was noticed just now", now, true, false)
	is("before its point of the spread", now.Add(29*time.Second), true, false)
	got := is("after its point of the spread", now.Add(31*time.Second), true, true)
	if got.Has.Issuer != goal.GetWant().GetIssuer() || len(got.Has.Gossip) != 0 || got.Want != goal.GetWant() {
		t.Errorf("the renewal has %+v and wants %v", got.Has, got.Want)
	}
	if err := noteReported(source.Dir(), got.Has); err != nil {
		t.Fatal(err)
	}
	orders.Rings(func() (gossip, probe []string) { return []string{"k1"}, nil })
	got = is("the goal is reached, and not reported", now.Add(32*time.Second), true, true)
	if err := noteReported(source.Dir(), got.Has); err != nil {
		t.Fatal(err)
	}
	is("the goal is reached and reported", now.Add(33*time.Second), true, false)
	if r.wanted != nil {
		t.Error("the member still wants something")
	}
	next := &nusav1.KeyGoal{Version: 2, Want: &nusav1.KeyState{Gossip: []string{"k1", "k2"}}}
	orders.Set(next)
	is("a goal without a spread", now.Add(34*time.Second), true, true)

	var none *Orders
	none.Set(next)
	none.Rings(nil)
	if none.Goal() != nil {
		t.Error("nobody wants something")
	}
	plain := &Renewer{Source: source, Log: slog.New(slog.DiscardHandler)}
	if _, due := plain.due(begin, end, now); due {
		t.Error("a member without orders renews early")
	}
}

// TestPausesGrow: a member that never gets what it should have, because it was started with keys of its
// own, renews less and less often for the same goal.
func TestPausesGrow(t *testing.T) {
	var got []time.Duration
	for tries := range 8 {
		got = append(got, pauseAfter(time.Minute, tries))
	}
	want := []time.Duration{6 * time.Second, 12 * time.Second, 24 * time.Second, 48 * time.Second, 96 * time.Second, 192 * time.Second, mostPause, mostPause}
	if !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
	r := &Renewer{Source: pkitest.New(t).Source("region/a/server/s1"), Orders: &Orders{}, Log: slog.New(slog.DiscardHandler), tries: 5}
	now := time.Now()
	for version, tries := range []int{0, 5} { // the first look notices the goal
		if version == 1 {
			r.tries = 5
		}
		r.Orders.Set(&nusav1.KeyGoal{Version: 1, Want: &nusav1.KeyState{Probe: []string{"k1"}}})
		if r.due(now, now.Add(time.Hour), now); r.tries != tries {
			t.Errorf("look %d: %d tries, want %d", version, r.tries, tries)
		}
	}
}

// TestFormerRoots: a member notes the roots that it gives up, once.
func TestFormerRoots(t *testing.T) {
	dir, ca, other := t.TempDir(), pkitest.New(t), pkitest.New(t)
	roots := func(certs ...*x509.Certificate) *pki.Roots {
		out, err := pki.NewRoots(certs...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	old, both, next := roots(ca.Root.Cert), roots(ca.Root.Cert, other.Root.Cert), roots(other.Root.Cert)
	for i, step := range [][2]*pki.Roots{{old, old}, {old, both}, {both, next}, {both, next}} {
		if err := noteFormer(dir, step[0], step[1]); err != nil {
			t.Fatal(err)
		}
		got, err := formerRoots(dir)
		if want := keysOf(old)[:min(1, i/2)]; err != nil || !slices.Equal(got, want) {
			t.Errorf("step %d: %x, %v, want %x", i, got, err, want)
		}
	}
}

// TestServersAskForKeysAtTheirStart: a server that has keys of the federation renews once at its start,
// because the keys may have changed while it was off.
func TestServersAskForKeysAtTheirStart(t *testing.T) {
	ca := pkitest.New(t)
	source, now := ca.Source("region/a/server/s1"), time.Now()
	for _, haveKeys := range []bool{false, true} {
		if haveKeys {
			if err := writeRings(source.Dir(), &nusav1.JoinResponse{GossipKeys: [][]byte{[]byte("key")}}); err != nil {
				t.Fatal(err)
			}
		}
		r := &Renewer{Source: source, Orders: &Orders{}, Ask: true, Log: slog.New(slog.DiscardHandler)}
		if _, due := r.due(now, now.Add(time.Hour), now); due != haveKeys {
			t.Errorf("with keys %v: due %v", haveKeys, due)
		}
		if _, due := r.due(now, now.Add(time.Hour), now); due {
			t.Error("the server asks twice")
		}
	}
}

// TestFilesOfKeys: keys are written for their owner only, and read again. A damaged file gives no key, and no part of one.
func TestFilesOfKeys(t *testing.T) {
	dir := t.TempDir()
	keys := [][]byte{nil, []byte("0123456789abcdef"), bytes.Repeat([]byte{0xff}, 32)}
	if err := writeRings(dir, &nusav1.JoinResponse{ProbeKeys: keys}); err != nil {
		t.Fatal(err)
	}
	if err := writeRings(dir, &nusav1.JoinResponse{}); err != nil { // an earlier server answers no keys
		t.Fatal(err)
	}
	path := filepath.Join(dir, ProbeKeysFile)
	got, err := ReadKeys(path)
	if err != nil || !slices.EqualFunc(got, keys, bytes.Equal) {
		t.Errorf("%v, %v", enroll.KeyIDs(got), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got, err := ReadKeys(filepath.Join(dir, GossipKeysFile)); err != nil || got != nil {
		t.Errorf("a file that does not exist: %v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("c2VjcmV0!\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKeys(path); err == nil || bytes.Contains([]byte(err.Error()), []byte("c2VjcmV0")) {
		t.Errorf("a damaged file: %v", err)
	}
}
