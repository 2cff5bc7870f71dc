package regional_test

import (
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestOneAgentOfAName: a second agent with an identity of its own is refused as
// long as the first is not lost, also by the next master, and is told who has
// the name; the first may come back from elsewhere at any time, and when it is
// gone for good the second is taken.
func TestOneAgentOfAName(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		w.server(1)
		w.server(2, 1)
		w.server(3, 1)
		master := w.master(1, 2, 3)
		first := w.agent("n1", runs)
		w.eventually("the first is ready", func() bool {
			return w.node(master, "n1").GetState() == nusav1.NodeState_NODE_STATE_READY
		})
		second := w.agent("n1", runs)
		second.stop()
		second.id, second.refused = "other", ""
		refused := func() (message string) {
			second.held(func(a *fakeAgent) {
				if message = a.refused; a.welcomes > 0 {
					t.Error("the second is welcome")
				}
				a.refused = ""
			})
			return message
		}
		second.welcomes = 0
		second.start()
		w.eventually("the second is refused", func() bool {
			m := refused()
			return strings.Contains(m, "the name n1 is taken by another agent, node node-n1 at "+first.ip) && strings.Contains(m, "give this one another --name")
		})

		// The first comes back at once, from elsewhere.
		first.stop()
		before := 0
		first.held(func(a *fakeAgent) { before, a.ip = a.welcomes, "10.1.1.77" })
		first.start()
		w.eventually("the first is welcome again", func() (ok bool) {
			first.held(func(a *fakeAgent) { ok = a.welcomes > before })
			return ok
		})
		w.kill(master)
		master = w.master(without([]int{1, 2, 3}, master)...)
		refused()
		time.Sleep(3 * nodeLease)
		if refused() == "" {
			t.Error("the next master does not refuse the second")
		}

		first.stop()
		if time.Sleep(nodeLease / 2); refused() == "" {
			t.Error("the second is taken while the first is not lost")
		}
		w.eventually("the second is taken", func() (ok bool) {
			second.held(func(a *fakeAgent) { ok = a.welcomes > 0 })
			return ok
		})
		first.held(func(a *fakeAgent) { a.refused = "" })
		first.start()
		w.eventually("the first is refused", func() (ok bool) {
			first.held(func(a *fakeAgent) { ok = strings.Contains(a.refused, "taken by another agent, node other") })
			return ok
		})
	})
}
