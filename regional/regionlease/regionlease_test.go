package regionlease

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/regional/state"
)

const s = time.Second

var log5 = Basis{Term: 5, Nonce: "n5", Fence: 2, Incarnation: 1, Orders: state.Position{Epoch: "e", Sequence: 10}}

func with(b Basis, change func(*Basis)) Basis {
	change(&b)
	return b
}

// TestGrantCountsOnlyWithItsBasis: the request was sent at 10 s, the lease is 15 s long, and the
// state of the lease is read at 12 s.
func TestGrantCountsOnlyWithItsBasis(t *testing.T) {
	for _, c := range []struct {
		name  string
		grant func(*Basis)
		left  time.Duration
		why   string
	}{
		{"the log has everything", func(*Basis) {}, 13 * s, ""},
		{"the log has more orders", func(b *Basis) { b.Orders.Sequence = 9 }, 13 * s, ""},
		{"the grant has overtaken orders", func(b *Basis) { b.Orders.Sequence = 11 }, 0, "slot orders up to 11, the log has 10"},
		{"orders of another epoch", func(b *Basis) { b.Orders.Epoch = "other" }, 0, "slot orders up to 10"},
		{"an earlier leadership", func(b *Basis) { b.Term = 4 }, 0, "leadership term 4 came, the log has 5"},
		{"a later leadership", func(b *Basis) { b.Term = 6 }, 0, "leadership term 6"},
		{"another leadership of the same number", func(b *Basis) { b.Nonce = "x" }, 0, "leadership term 5"},
		{"an earlier fence", func(b *Basis) { b.Fence = 1 }, 0, "fence 1 came, the log has 2"},
		{"a later fence", func(b *Basis) { b.Fence = 3 }, 0, "fence 3"},
		{"another incarnation", func(b *Basis) { b.Incarnation = 2 }, 0, "incarnation 2"},
	} {
		var l Lease
		id := l.Request(10 * s)
		l.Granted(Grant{ID: id, Duration: 15 * s, Basis: with(log5, c.grant)})
		st := l.At(12*s, log5)
		if st.Left != c.left || st.Returned != (c.left > 0) || !strings.Contains(st.Why, c.why) || (st.Why == "") != (c.why == "") {
			t.Errorf("%s: %+v", c.name, st)
		}
	}
}

// TestReturningLeaseWaitsForThePlan: a region that comes back first stops the instances
// that it lost. Only then do tasks start again. A lease that the region still holds goes on
// while later orders are planned.
func TestReturningLeaseWaitsForThePlan(t *testing.T) {
	var l Lease
	planned := func(epoch string, n uint64) Basis {
		return with(log5, func(b *Basis) { b.Planned = state.Position{Epoch: epoch, Sequence: n} })
	}
	l.Granted(Grant{ID: l.Request(0), Duration: 15 * s, Basis: log5})
	for _, log := range []Basis{planned("e", 0), planned("e", 9), planned("other", 99)} {
		if st := l.At(s, log); st.Left != 0 || !strings.Contains(st.Why, "waits for slot orders up to 10") {
			t.Errorf("planned %v: %+v", log.Planned, st)
		}
	}
	if st := l.At(2*s, planned("e", 10)); st.Left != 13*s || !st.Returned {
		t.Errorf("planned: %+v", st)
	}
	more := with(planned("e", 10), func(b *Basis) { b.Orders.Sequence = 20 })
	l.Granted(Grant{ID: l.Request(5 * s), Duration: 15 * s, Basis: with(log5, func(b *Basis) { b.Orders.Sequence = 20 })})
	if st := l.At(6*s, more); st.Left != 14*s || st.Returned {
		t.Errorf("while it is held: %+v", st)
	}
}

func TestGrantCountsOnceTheLogHasTheOrders(t *testing.T) {
	var l Lease
	ahead := with(log5, func(b *Basis) { b.Orders.Sequence = 12 })
	l.Granted(Grant{ID: l.Request(0), Duration: 15 * s, Basis: ahead})
	for _, n := range []uint64{10, 11} {
		if st := l.At(s, with(log5, func(b *Basis) { b.Orders.Sequence = n })); st.Left != 0 {
			t.Fatalf("with orders up to %d: %+v", n, st)
		}
	}
	if st := l.At(2*s, ahead); st.Left != 13*s || !st.Returned {
		t.Fatalf("with all orders: %+v", st)
	}
	if st := l.At(3*s, ahead); st.Left != 12*s || st.Returned {
		t.Fatalf("later: %+v", st)
	}
	if st := l.At(16*s, ahead); st.Left != 0 || st.Why != "it ended 1s ago: no grant has arrived since then" {
		t.Fatalf("after its end: %+v", st)
	}
	l.Granted(Grant{ID: l.Request(16 * s), Duration: 15 * s, Basis: ahead})
	if st := l.At(17*s, ahead); st.Left != 14*s || !st.Returned {
		t.Fatalf("granted again: %+v", st)
	}
}

func TestFenceOrIncarnationEndsAHeldLease(t *testing.T) {
	for _, c := range []struct {
		name  string
		log   func(*Basis)
		holds bool
	}{
		{"more orders", func(b *Basis) { b.Orders.Sequence = 99 }, true},
		{"a later leadership", func(b *Basis) { b.Term, b.Nonce = 6, "n6" }, true},
		{"a greater fence", func(b *Basis) { b.Fence = 3 }, false},
		{"another incarnation", func(b *Basis) { b.Incarnation = 2 }, false},
		{"another federation, after a rebind", func(b *Basis) { b.Federation = "other" }, false},
	} {
		var l Lease
		l.Granted(Grant{ID: l.Request(0), Duration: 15 * s, Basis: log5})
		l.At(s, log5)
		l.NewSession() // a held lease goes on in the next session
		if st := l.At(2*s, with(log5, c.log)); (st.Left > 0) != c.holds || c.holds && st.Left != 13*s {
			t.Errorf("%s: %+v", c.name, st)
		}
		// A shorter lease under the new fence must not get the end of the former lease.
		if c.name == "a greater fence" {
			now := with(log5, c.log)
			l.Granted(Grant{ID: l.Request(2 * s), Duration: 5 * s, Basis: now})
			if st := l.At(3*s, now); st.Left != 4*s {
				t.Errorf("granted under the new fence: %+v", st)
			}
		}
	}
}

func TestGrantOfAFormerSessionDoesNotWait(t *testing.T) {
	var l Lease
	ahead := with(log5, func(b *Basis) { b.Orders.Sequence = 12 })
	l.Granted(Grant{ID: l.Request(0), Duration: 15 * s, Basis: ahead})
	if l.Latest() != 1 {
		t.Errorf("latest grant %d", l.Latest())
	}
	l.NewSession()
	if st := l.At(s, ahead); st.Left != 0 || l.Latest() != 0 {
		t.Errorf("in the next session: %+v, latest grant %d", st, l.Latest())
	}
	for range 2 * maxPending {
		l.Granted(Grant{ID: l.Request(s), Duration: 15 * s, Basis: ahead})
	}
	if len(l.pending) != maxPending {
		t.Errorf("%d grants wait", len(l.pending))
	}
}

// TestLeaseIsNeverLongerThanGranted drives a lease through random requests, grants and
// changes of the log. An oracle remembers which grants the log supported.
func TestLeaseIsNeverLongerThanGranted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type request struct {
			id   uint64
			sent time.Duration
		}
		type counted struct {
			fence, incarnation uint64
			until              time.Duration
		}
		var l Lease
		var sent []request
		var waiting []Grant // received in this session
		var counts []counted
		now, log := time.Duration(0), log5
		supports := func(g Grant) bool {
			return g.Basis.Term == log.Term && g.Basis.Nonce == log.Nonce && g.Basis.Fence == log.Fence &&
				g.Basis.Incarnation == log.Incarnation && g.Basis.Orders.Epoch == log.Orders.Epoch && g.Basis.Orders.Sequence <= log.Orders.Sequence
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 6).Draw(t, "pause")) * s
			switch rapid.SampledFrom([]string{"request", "request", "grant", "grant", "grant", "orders", "term", "fence", "incarnation", "session"}).Draw(t, "step") {
			case "request":
				sent = append(sent, request{l.Request(now), now})
			case "grant":
				if len(sent) == 0 {
					continue
				}
				r := rapid.SampledFrom(sent).Draw(t, "of")
				g := Grant{ID: r.id, Duration: time.Duration(rapid.IntRange(1, 20).Draw(t, "length")) * s, Basis: log}
				switch rapid.IntRange(0, 9).Draw(t, "basis") {
				case 0:
					g.Basis.Term--
				case 1:
					g.Basis.Fence--
				case 2:
					g.Basis.Incarnation++
				case 3, 4, 5:
					g.Basis.Orders.Sequence += uint64(rapid.IntRange(1, 3).Draw(t, "ahead"))
				}
				l.Granted(g)
				waiting = append(waiting, g)
			case "orders":
				log.Orders.Sequence++
			case "term":
				log.Term++
			case "fence":
				log.Fence++
			case "incarnation":
				log.Incarnation++
			case "session":
				l.NewSession()
				waiting = nil
			}
			for _, g := range waiting {
				if supports(g) {
					counts = append(counts, counted{log.Fence, log.Incarnation, sent[g.ID-1].sent + g.Duration})
				}
			}
			until := time.Duration(0)
			for _, c := range counts {
				if c.fence == log.Fence && c.incarnation == log.Incarnation {
					until = max(until, c.until)
				}
			}
			if st := l.At(now, log); st.Left > max(until-now, 0) || (st.Left > 0) != (st.Why == "") {
				t.Fatalf("at %s: %+v, at most until %s", now, st, until)
			}
		}
	})
}

func TestPauseAndCommitBlocked(t *testing.T) {
	if Pause(15*s) != 2*s || Pause(3*s) != s {
		t.Errorf("pauses %s and %s", Pause(15*s), Pause(3*s))
	}
	if CommitBlocked(500*time.Millisecond) != 0 || CommitBlocked(3*s) != 3*s {
		t.Error("blocked for another time")
	}
}
