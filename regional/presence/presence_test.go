package presence

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	s      = time.Second
	length = 15 * s // length of the leases
)

// TestStatus goes through the life of a node. Each line has an event and the status that
// the node should have after it.
func TestStatus(t *testing.T) {
	n := New(100 * s)
	stored, with := state.NodeReady, None
	check := func(at time.Duration, what string, want state.NodeStatus) {
		t.Helper()
		got, silent := n.Status(stored, with, length, at)
		if got != want || silent != at-n.Seen() && silent != 0 {
			t.Errorf("%s, %s: %s, silent for %s, want %s", at, what, got, silent, want)
		}
		stored = got
	}
	check(115*s, "one lease after the election", state.NodeReady)
	check(115*s+1, "and a moment", state.NodeLost)
	n.Attached(130 * s)
	with = Resyncing
	check(130*s, "it is back, its reports are missing", state.NodeLost)
	with = Current
	check(131*s, "its reports are committed", state.NodeReady)
	n.Arrived(140 * s)
	check(160*s, "its message waits for this server's disk", state.NodeReady)
	n.Handled(160 * s)
	check(175*s, "a lease after that", state.NodeReady)
	check(175*s+1, "and a moment", state.NodeLost)
	stored = state.NodeReady
	n.Arrived(180 * s)
	n.Handled(180 * s)
	n.Leave()
	check(181*s, "its goodbye is being committed", state.NodeReady)
	stored = state.NodeLeft
	check(500*s, "it has left", state.NodeLeft)
	n.Attached(600 * s)
	stored = state.NodeReady
	check(601*s, "it is back", state.NodeReady)
}

// TestAbsence: an absence counts from the last message before the node was lost, until the
// node is ready again. A message without a lease does not change since when the node has no
// lease.
func TestAbsence(t *testing.T) {
	n := New(100 * s)
	var got []string
	see := func(what string, stored state.NodeStatus, at time.Duration) {
		a := n.Absence(stored, at)
		got = append(got, fmt.Sprintf("%s: silent %s, unleased %s, %s until 20s, %s until the lease is over",
			what, a.Silent, a.Unleased, a.Left(20*s), a.LeaseLeft(length, 5*s).Round(time.Millisecond)))
	}
	beat := func(at time.Duration, granted bool) {
		n.Arrived(at)
		if granted {
			n.Grant(0)
		}
		n.Handled(at)
	}
	see("elected", state.NodeLost, 100*s)
	beat(110*s, true)
	beat(112*s, false)
	see("ready", state.NodeReady, 113*s)
	n.Status(state.NodeReady, Current, length, 115*s)
	n.Status(state.NodeReady, Current, length, 130*s)
	see("lost", state.NodeLost, 130*s)
	n.Attached(132 * s)
	beat(132*s, false)
	n.Status(state.NodeLost, Resyncing, length, 132*s)
	see("back", state.NodeLost, 133*s)
	n.Returned()
	see("ready again", state.NodeReady, 133*s)
	beat(134*s, true)
	see("leased again", state.NodeReady, 134*s)
	want := strings.TrimSpace(`
elected: silent 0s, unleased 0s, 20s until 20s, 21.404s until the lease is over
ready: silent 1s, unleased 3s, 19s until 20s, 18.404s until the lease is over
lost: silent 18s, unleased 20s, 2s until 20s, 1.404s until the lease is over
back: silent 21s, unleased 23s, -1s until 20s, -1.596s until the lease is over
ready again: silent 1s, unleased 23s, 19s until 20s, -1.596s until the lease is over
leased again: silent 0s, unleased 0s, 20s until 20s, 21.404s until the lease is over`)
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got:\n%s\nwant:\n%s", text, want)
	}
}

// TestNodeThatMissesGrantsIsSilent: the node's requests arrive, but no grant reaches the
// node.
func TestNodeThatMissesGrantsIsSilent(t *testing.T) {
	for _, c := range []struct {
		what   string
		missed map[uint64]bool // ids of grants
		lost   time.Duration   // when the node is lost; 0: never
	}{
		{"healthy", nil, 0},
		{"one is lost", map[uint64]bool{3: true}, 0},
		{"two are lost, and the next arrives", map[uint64]bool{3: true, 4: true}, 0},
		{"all from the third on", map[uint64]bool{3: true, 4: true, 5: true, 6: true, 7: true, 8: true, 9: true, 10: true}, 31 * s},
	} {
		n := New(0)
		n.Attached(0)
		var lost time.Duration
		confirmed := uint64(0)
		for at := time.Duration(0); at < 50*s; at += s {
			if at%(5*s) == 0 {
				id := uint64(at/(5*s)) + 1
				n.Arrived(at)
				n.Requested(confirmed, length)
				if n.Grant(id) && !c.missed[id] {
					confirmed = id
				}
				n.Handled(at)
			}
			if status, _ := n.Status(state.NodeReady, Current, length, at+s/2); status == state.NodeLost && lost == 0 {
				lost = at
			}
		}
		if want := max(c.lost, 0); lost != want && !(want > 0 && lost > want-2*s && lost < want+10*s) {
			t.Errorf("%s: lost at %s, want %s", c.what, lost, want)
		}
	}
}

// TestLostNodeHasNoLease: a node that was declared lost gets no lease, whatever it sends,
// until the log says that it is ready.
func TestLostNodeHasNoLease(t *testing.T) {
	n := New(0)
	if !n.Grant(1) {
		t.Error("a ready node gets no lease")
	}
	if status, _ := n.Status(state.NodeReady, Current, length, length+1); status != state.NodeLost {
		t.Fatalf("after a lease of silence: %s", status)
	}
	n.Arrived(length + 2)
	if n.Grant(2) {
		t.Error("its instances may be given up at this moment")
	}
	if left := n.Absence(state.NodeLost, length+3).LeaseLeft(length, 0); left != lease.Over(length, 0)-length-3 {
		t.Errorf("the refused request prolongs the wait: %s are left", left)
	}
	n.Returned()
	if !n.Grant(2) {
		t.Error("it is ready again and gets no lease")
	}
}

func TestSilence(t *testing.T) {
	busy := New(0)
	busy.Arrived(0)
	for _, c := range []struct {
		what     string
		node     Node
		stored   state.NodeStatus
		with     Session
		recorded time.Duration
		at, want time.Duration // -1: the node is not silent
	}{
		{"a session", New(0), state.NodeReady, Current, time.Hour, 7 * s, -1},
		{"a silent session", New(0), state.NodeReady, Current, time.Hour, 8 * s, 8 * s},
		{"no session", New(0), state.NodeReady, None, time.Hour, s, s},
		{"lost since an earlier term", New(0), state.NodeLost, None, time.Hour, s, time.Hour},
		{"lost, and the wall clock was set back", New(0), state.NodeLost, None, -time.Hour, 20 * s, 20 * s},
		{"left", New(0), state.NodeLeft, None, time.Hour, time.Hour, -1},
		{"a message waits here", busy, state.NodeReady, Current, time.Hour, time.Hour, -1},
		{"elected a moment ago by a clock that is read again", New(s), state.NodeReady, None, 0, 0, 0},
	} {
		silent, is := c.node.Silence(c.stored, c.with, length, c.recorded, c.at)
		if is != (c.want >= 0) || is && silent != c.want {
			t.Errorf("%s: %s, %v, want %s", c.what, silent, is, c.want)
		}
	}
}

// TestNothingRunsWhenTheLeaseIsOver: an agent renews its lease from one master after
// another. Messages are delayed and lost, and the agent's clock runs at another rate.
// Whenever a master decides that the lease is over, all tasks that the lease bound have
// ended.
func TestNothingRunsWhenTheLeaseIsOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const stop = 5 * s
		rate := func(label string) float64 { return rapid.Float64Range(0.99, 1.01).Draw(t, label) }
		agentRate, now := rate("agent"), time.Duration(0) // now is the true time
		by := func(rate float64, now time.Duration) time.Duration { return time.Duration(float64(now) * rate) }
		var holder lease.Holder
		masterRate := rate("master")
		master := New(by(masterRate, now))
		longest := length
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			pass := time.Duration(rapid.IntRange(0, 30_000).Draw(t, "ms")) * time.Millisecond
			now += pass
			if master.Absence(state.NodeLost, by(masterRate, now)).LeaseLeft(longest, stop) <= 0 {
				if st := holder.At(by(agentRate, now)); st.Held && st.Left+stop > 0 {
					t.Fatalf("after %s the agent may run for %s more", now, st.Left+stop)
				}
			}
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0: // another master, which grants leases of another length
				masterRate = rate("master")
				master = New(by(masterRate, now))
			default:
				id := holder.Request(by(agentRate, now))
				granted := time.Duration(rapid.IntRange(1, int(longest/s)).Draw(t, "length")) * s
				now += time.Duration(rapid.IntRange(0, 10_000).Draw(t, "delay")) * time.Millisecond
				at := by(masterRate, now)
				master.Arrived(at)
				master.Grant(0)
				master.Handled(at)
				now += time.Duration(rapid.IntRange(0, 10_000).Draw(t, "delay")) * time.Millisecond
				if rapid.Bool().Draw(t, "arrives") {
					holder.Granted(id, granted)
				}
			}
		}
	})
}
