package sched_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// process is a process that an agent started for an allocation, and the content of its
// order.
type process struct {
	alloc   string
	index   int32
	binding state.Binding
	kill    time.Duration
}

// host is a node with its agent.
type host struct {
	cut bool
	// granted is when the agent sent the latest lease request that was granted.
	granted   time.Duration
	processes []process
}

// truth is a region with its nodes and the processes that really run.
type truth struct {
	*world
	t     *rapid.T
	hosts map[string]*host
	// elsewhere has the indices that another region runs.
	elsewhere map[int32]bool
	version   int
	gen       int
}

const (
	hostsInTruth   = 3
	regionLeaseMax = 20 * time.Second
)

// TestBoundInstancesRunOnce: nodes are cut off and return, masters change, wall clocks are
// set, the policy changes, and the slot moves to another region and back. For an index that
// a lease binds, at most one process exists at any time, although agents stop as late as
// they may.
func TestBoundInstancesRunOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &truth{world: newWorld(), t: t, hosts: map[string]*host{}, elsewhere: map[int32]bool{}}
		w.do("lease max=10s region=20s")
		for i := range hostsInTruth {
			id := fmt.Sprint("n", i)
			w.hosts[id] = &host{}
			w.do("node " + id)
		}
		w.submit(true)
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			w.step()
			w.decide()
		}
	})
}

// do runs a line of a script.
func (w *truth) do(line string) {
	w.out.Reset()
	w.run(&testing.T{}, "truth", line)
}

func (w *truth) submit(wanted bool) {
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(w.t, label) }
	if wanted {
		w.version++
		w.do(fmt.Sprintf("job x g v=%d hash=%s after=1s cpu=100 parallel=2 %s", w.version, pick("hash", "1", "1", "2"),
			pick("policy", "", "running=stop", "singleton=yes", "region=stop", "replace=no", "running=stop reconcile=replacement")))
		if len(w.elsewhere) > 0 {
			w.gen++
		}
		clear(w.elsewhere)
		w.do(fmt.Sprintf("order x 0-2 gen=%d", 1+w.gen))
		return
	}
	w.do(fmt.Sprintf("order x 0-2 gen=%d desired=revoke", 1+w.gen))
}

// step makes one change.
func (w *truth) step() {
	h := w.hosts[fmt.Sprint("n", rapid.IntRange(0, hostsInTruth-1).Draw(w.t, "host"))]
	switch rapid.IntRange(0, 9).Draw(w.t, "step") {
	case 0, 1, 2:
		h.cut = !h.cut
	case 3:
		w.do("clock by=" + rapid.SampledFrom([]string{"1s", "1h"}).Draw(w.t, "clock"))
	case 4:
		w.do("election")
	case 5:
		w.submit(true)
	case 6:
		w.submit(false)
	default:
		for range rapid.IntRange(1, 40).Draw(w.t, "seconds") {
			w.beat()
			w.now += int64(time.Second)
			w.boot += time.Second
			w.decide()
		}
	}
}

// beat gives the connected agents a lease.
func (w *truth) beat() {
	for id, h := range w.hosts {
		c := w.contacts[id]
		if c == nil {
			c = new(presence.New(w.boot))
			w.contacts[id] = c
		}
		if n, _ := w.st.Snapshot().Node(id); !h.cut {
			c.Arrived(w.boot)
			if n.Status == state.NodeReady && c.Grant(0) {
				h.granted = w.boot
			}
			c.Handled(w.boot)
		}
	}
}

// decide runs the master's decisions and the agents' reactions until nothing changes.
func (w *truth) decide() {
	for range 10 {
		w.expire()
		w.watch()
		p := sched.Make(w.input())
		for _, c := range p.Commands(w.newID, 5) {
			w.apply(state.Command{ApplyPlan: &c})
		}
		w.move()
		if !w.follow() && p.Empty() {
			return
		}
	}
}

// expire ends the processes whose lease and stop time have passed on the slowest clock.
func (w *truth) expire() {
	for _, h := range w.hosts {
		h.processes = slices.DeleteFunc(h.processes, func(p process) bool {
			length := testLease
			switch p.binding {
			case state.BindNone:
				return false
			case state.BindRegion:
				length = regionLeaseMax
			}
			return w.boot-h.granted > (length+p.kill)*101/99
		})
	}
}

// watch declares nodes lost and ready. A node that is back has reported which of its
// allocations ended.
func (w *truth) watch() {
	w.beat()
	for id, h := range w.hosts {
		n, _ := w.st.Snapshot().Node(id)
		with := presence.Current
		if h.cut {
			with = presence.None
		}
		status, _ := w.contacts[id].Status(n.Status, with, testLease, w.boot)
		if status == state.NodeReady && n.Status != state.NodeReady {
			w.report(id, h)
		}
		if status != n.Status {
			w.apply(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: id, Status: status}})
			if status == state.NodeReady {
				w.contacts[id].Returned()
			}
		}
	}
}

// report reports the allocations of a node that no process runs any more.
func (w *truth) report(id string, h *host) {
	for a := range w.st.Snapshot().NodeAllocs(id) {
		runs := slices.ContainsFunc(h.processes, func(p process) bool { return p.alloc == a.ID })
		if a.Charged && a.State != state.Pending && !runs {
			w.apply(state.Command{AgentReports: &state.AgentReports{NodeID: id, Reports: []state.AllocReport{{ID: a.ID, State: state.Failed, Reason: state.ReasonLeaseExpired}}}})
		}
	}
}

// follow lets the connected agents of ready nodes follow their orders.
func (w *truth) follow() (changed bool) {
	for id, h := range w.hosts {
		if n, _ := w.st.Snapshot().Node(id); h.cut || n.Status != state.NodeReady {
			continue
		}
		for a := range w.st.Snapshot().NodeAllocs(id) {
			at := slices.IndexFunc(h.processes, func(p process) bool { return p.alloc == a.ID })
			switch {
			case a.Charged && a.Desired == state.Stop:
				if at >= 0 {
					h.processes = slices.Delete(h.processes, at, at+1)
				}
				w.say(a, state.Stopped)
			case a.State == state.Pending:
				job, _ := w.st.Snapshot().Job(a.Key().JobKey(), a.JobVersion)
				g := job.Group("g")
				w.start(h, process{a.ID, a.Index, g.Binding(false), g.KillTimeout})
				w.say(a, state.Running)
			case a.Live() && at < 0:
				w.say(a, state.Failed)
			default:
				continue
			}
			changed = true
		}
	}
	return changed
}

func (w *truth) say(a *state.Alloc, s state.AllocState) {
	w.apply(state.Command{AgentReports: &state.AgentReports{NodeID: a.NodeID, Reports: []state.AllocReport{{ID: a.ID, State: s}}}})
}

// start begins a process. If a lease binds this process, or another one of its index, it
// must be the only process.
func (w *truth) start(h *host, p process) {
	for id, other := range w.hosts {
		for _, q := range other.processes {
			if q.index == p.index && (q.binding != state.BindNone || p.binding != state.BindNone) {
				w.t.Fatalf("index %d starts as %s, binding %d, and runs on %s as %s, binding %d", p.index, p.alloc, p.binding, id, q.alloc, q.binding)
			}
		}
	}
	h.processes = append(h.processes, p)
}

// move gives the slot to another region after this region gave it up. The other region runs
// the present version.
func (w *truth) move() {
	for _, a := range accept.Answers(w.st.Snapshot()) {
		if a.State != state.SlotRevoked || len(w.elsewhere) > 0 {
			continue
		}
		job := w.jobs["x"]
		for i := a.From; i < a.To; i++ {
			w.elsewhere[i] = true
			w.start(&host{}, process{"elsewhere", i, job.Group("g").Binding(false), 0})
		}
	}
}
