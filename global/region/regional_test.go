package region_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"pgregory.net/rapid"
)

// realRegion drives the cores of the regional tier on one node: the log's
// state, the scheduler and the answers.
type realRegion struct {
	state *state.State
	index uint64
	now   int64
	typ   state.JobType
	ids   int
	roomy bool
	sent  uint64
}

func newRealRegion(name string, typ place.JobType) *realRegion {
	r := &realRegion{state: state.New(), typ: state.Service, now: int64(time.Hour)}
	if typ == place.Batch {
		r.typ = state.Batch
	}
	r.apply(state.Command{Bootstrap: &state.Bootstrap{ClusterID: name, Region: name}})
	r.node(2)
	return r
}

func (r *realRegion) apply(c state.Command) state.Result {
	r.index++
	c.NowUnixNano = r.now
	return r.state.Apply(r.index, c)
}

func (r *realRegion) node(cores int64) {
	r.apply(state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{
		ID: "n1", Name: "n1", Pool: "default", Status: state.NodeReady, Capacity: state.Resources{CPUMilli: cores * 1000},
	}}})
}

func (r *realRegion) order(position int64, slots []region.Slot) {
	stored := r.state.Cluster().Orders.Sequence
	if uint64(position) < stored {
		return
	}
	orders, kept := []state.SlotOrder{}, map[string]bool{}
	for _, s := range slots {
		o := state.SlotOrder{
			Slot: state.Slot{
				Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: int32(s.From), To: int32(s.To),
				Generation: s.Generation, Revision: s.Revision, JobVersion: s.JobVersion,
				Desired:         map[region.Desired]state.Desired{region.DesiredRun: state.Run, region.DesiredStop: state.Stop, region.DesiredRevoke: state.Revoke, region.DesiredHold: state.Hold}[s.Desired],
				UnlessConnected: s.UnlessConnected,
				State:           map[region.SlotState]state.SlotState{region.Offered: state.SlotOffered, region.Accepted: state.SlotAccepted, region.Done: state.SlotDone}[s.State],
			},
			// A version with another hash restarts instances, one with the same
			// hash does not.
			Job: &state.Job{Version: s.JobVersion, Type: r.typ, Groups: []state.Group{{
				Name: "web", Hash: uint64(s.JobVersion / 2), MaxParallel: 1,
				Ask:        state.Ask{Resources: state.Resources{CPUMilli: 1000}, Pool: "default"},
				Reschedule: state.Reschedule{Attempts: 1000, From: time.Second, To: time.Minute},
			}}},
		}
		orders = append(orders, o)
		kept[o.Slot.ID()] = true
	}
	var removed []string
	for g := range r.state.Groups() {
		for _, s := range g.Slots {
			if !kept[s.ID()] {
				removed = append(removed, s.ID())
			}
		}
	}
	r.apply(state.Command{ApplyOrders: &state.ApplyOrders{
		Orders: orders, Removed: removed, Position: state.Position{Epoch: "e", Sequence: uint64(position)},
	}})
}

func (r *realRegion) answers() []region.Answer {
	var out []region.Answer
	for _, a := range accept.Answers(r.state.Snapshot()) {
		out = append(out, region.Answer{
			Namespace: a.Namespace, Job: a.Job, Group: a.Group, From: int(a.From), To: int(a.To),
			Generation: a.Generation, State: region.SlotState(a.State.String()), Reason: string(a.Reason), Message: a.Message,
		})
	}
	return out
}

func (r *realRegion) running() []int {
	var out []int
	for _, a := range r.live() {
		out = append(out, int(a.Index))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// live returns the allocations that have not ended.
func (r *realRegion) live() []*state.Alloc {
	var out []*state.Alloc
	view := r.state.Snapshot()
	for g := range view.Groups() {
		for a := range view.GroupAllocs(g.Key) {
			if a.Live() {
				out = append(out, a)
			}
		}
	}
	return out
}

func (r *realRegion) work(d *rand.Rand, healed bool) {
	r.now += int64(time.Second)
	switch pick(d, "schedule", "schedule", "schedule", "return", "report", "report", "report", "node") {
	case "node":
		status := state.NodeReady
		if !healed && d.IntN(2) == 0 {
			status = state.NodeLost
		}
		r.apply(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: "n1", Status: status}})
	case "schedule":
		r.schedule()
	case "return":
		in := accept.Input{View: r.state.Snapshot(), Unplaced: r.plan().Unplaced, LinkUp: true, NowUnixNano: r.now, Grace: time.Second}
		if cmd, _ := accept.Return(in); cmd != nil {
			r.apply(state.Command{AnswerSlots: cmd})
		}
	case "report":
		live := slices.DeleteFunc(r.live(), func(a *state.Alloc) bool { return a.Disconnected })
		if len(live) == 0 {
			return
		}
		a := pick(d, live...)
		ends := []state.AllocState{state.Running, state.Running, state.Complete}
		if a.Desired == state.Stop {
			ends = []state.AllocState{state.Stopped}
		} else if !healed {
			ends = append(ends, state.Failed)
		}
		r.report(a, pick(d, ends...))
	}
}

func (r *realRegion) plan() *sched.Plan {
	return sched.Make(sched.Input{View: r.state.Snapshot(), NowUnixNano: r.now, NodeLease: 10 * time.Second})
}

// schedule commits one plan and returns whether the plan had any content.
func (r *realRegion) schedule() bool {
	plan, cmd := r.plan(), &state.ApplyPlan{}
	for _, s := range plan.Stops {
		cmd.Stops = append(cmd.Stops, state.StopAlloc{ID: s.AllocID, Reason: s.Reason, Message: s.Message, GiveUp: s.GiveUp})
	}
	for _, p := range plan.Places {
		r.ids++
		cmd.Places = append(cmd.Places, state.PlaceGroup{Key: p.Key, JobVersion: p.JobVersion, Allocs: []state.PlaceAlloc{{
			ID: fmt.Sprintf("a%04d", r.ids), Index: p.Index, NodeID: p.NodeID, Ports: p.Ports, GPUs: p.GPUs, Why: p.Why,
		}}})
	}
	r.apply(state.Command{ApplyPlan: cmd})
	return !plan.Empty()
}

func (r *realRegion) report(a *state.Alloc, end state.AllocState) {
	r.sent++
	r.apply(state.Command{AgentReports: &state.AgentReports{
		NodeID: "n1", Position: state.Position{Epoch: "s", Sequence: r.sent}, Reports: []state.AllocReport{{ID: a.ID, State: end}},
	}})
}

// finish gives the node enough room, passes time so that every backoff is over,
// and applies the plans.
func (r *realRegion) finish() {
	r.apply(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: "n1", Status: state.NodeReady}})
	if !r.roomy {
		r.node(100)
		r.roomy = true
	}
	end := state.Running
	if r.typ == state.Batch {
		end = state.Complete
	}
	for range 50 {
		r.now += int64(time.Hour)
		again := r.schedule()
		for _, a := range r.live() {
			if a.Desired == state.Stop {
				r.report(a, state.Stopped)
				again = true
			} else if a.State != end {
				r.report(a, end)
				again = true
			}
		}
		if !again {
			return
		}
	}
}

// TestRegionalCoresKeepOneOwner is TestEveryIndexHasOneOwner with the real
// cores of the regional tier.
func TestRegionalCoresKeepOneOwner(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := dice(t)
		names := strings.Fields("jpe sea weu")[:pick(d, 1, 2, 3, 3)]
		typ := pick(d, place.Service, place.Service, place.Batch)
		f := newFederation(names, pick(d, 1, 3, 5, 6), typ, seen, func(name string) owner {
			return newRealRegion(name, typ)
		})
		for range 400 {
			f.step(d)
			f.check(t)
		}
		f.heal(t)
		f.checkHealed(t)
	})
	checkSeen(t, seen)
	if seen[string(region.Kept)] == 0 || seen[string(region.IgnoredNotAsked)] == 0 {
		t.Error("no region answered kept to a revoke")
	}
}
