package raftlog

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// pendingTest has a sequencer with large decisions, and a log that the test commits.
type pendingTest struct {
	*testing.T
	log *fakeLog
	q   *Sequencer
	// decide holds the commands that each decision returns, by the number of nodes that
	// the state has then.
	decide map[int][]state.Command
	// committed receives the number of nodes of each decision that is committed.
	committed chan int
	ended     chan error
}

func newPendingTest(t *testing.T, decide map[int][]state.Command) *pendingTest {
	f := NewFSM()
	x := &pendingTest{T: t, log: newFakeLog(f), decide: decide, committed: make(chan int, 64), ended: make(chan error, 1)}
	x.q = NewSequencer(x.log, f, func(v *state.View) Decision {
		n := v.NodeCount()
		d := Decision{Commands: x.decide[n], OnCommitted: func() { x.committed <- n }}
		delete(x.decide, n)
		return d
	}, func([]state.Result) {})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { x.ended <- x.q.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for {
			select {
			case f := <-x.log.applied:
				f.commit(false)
			case err := <-x.ended:
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	})
	return x
}

func (x *pendingTest) start(cmd state.Command) {
	if _, err := x.q.Propose(cmd); err != nil {
		x.Fatal(err)
	}
}

// largeJob returns a command of 40 KiB that submits a job.
func largeJob(name string) state.Command {
	return state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{
		Key: state.JobKey{Namespace: "n", Job: name, Local: true}, Type: state.Service, Spec: make([]byte, 40<<10),
		Groups: []state.Group{{Name: "g", Count: 1, Hash: 1}},
	}}}
}

func largeJobs(prefix string, n int) []state.Command {
	var out []state.Command
	for i := range n {
		out = append(out, largeJob(fmt.Sprintf("%s%02d", prefix, i)))
	}
	return out
}

// next returns the next entry, and the names of the objects in its commands.
func (x *pendingTest) next() (*future, []string) {
	f := <-x.log.applied
	cmds, err := decodeEntry(f.data)
	if err != nil {
		x.Fatal(err)
	}
	var names []string
	for _, c := range cmds {
		switch {
		case c.SubmitLocalJob != nil:
			names = append(names, c.SubmitLocalJob.Job.Key.Job)
		case c.UpsertNode != nil:
			names = append(names, c.UpsertNode.Node.ID)
		default:
			names = append(names, "stop "+c.ApplyPlan.Stops[0].ID)
		}
	}
	return f, names
}

// TestOtherCommandsGoBetweenTheEntriesOfALargeDecision: other commands are proposed between
// the entries of a decision. The decision counts as committed with its last entry.
func TestOtherCommandsGoBetweenTheEntriesOfALargeDecision(t *testing.T) {
	x := newPendingTest(t, map[int][]state.Command{1: largeJobs("d", 20)})
	x.start(sample("node"))
	first, names := x.next()
	second, more := x.next()
	if names[0] != "node" || names[1] != "d00" || len(names)+len(more) >= 20 {
		t.Fatalf("the first entries have %q and %q", names, more)
	}
	x.start(largeJob("other"))
	first.commit(false)
	f, third := x.next()
	if third[0] != "other" {
		t.Errorf("another command waits: %q comes before it", third)
	}
	all := slices.Concat(names, more, third)
	second.commit(false)
	for f.commit(false); len(all) < 22; f.commit(false) {
		f, names = x.next()
		if len(x.committed) > 0 {
			t.Errorf("committed before %q was", names)
		}
		all = append(all, names...)
	}
	if n := <-x.committed; n != 1 {
		t.Errorf("the decision about %d nodes is committed", n)
	}
	decided := slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, "d") })
	if len(decided) != 20 || !slices.IsSorted(decided) {
		t.Errorf("proposed: %q", decided)
	}
}

// TestNewNodeInvalidatesThePendingPlan: the rest of a decision is not proposed after
// the nodes have changed.
func TestNewNodeInvalidatesThePendingPlan(t *testing.T) {
	x := newPendingTest(t, map[int][]state.Command{1: largeJobs("d", 20), 2: largeJobs("e", 3)})
	x.start(sample("node"))
	first, _ := x.next()
	second, _ := x.next()
	x.start(sample("another"))
	for _, f := range []*future{first, second} {
		f.commit(false)
	}
	var all []string
	for !slices.Contains(all, "e02") {
		f, names := x.next()
		all = append(all, names...)
		f.commit(false)
	}
	if at := slices.Index(all, "another"); !slices.Equal(all[at:], []string{"another", "e00", "e01", "e02"}) {
		t.Errorf("after the node came %q", all[at:])
	}
	for n := range x.committed {
		if n == 1 {
			t.Error("a decision was committed that was not proposed as a whole")
		} else if n == 2 {
			break
		}
	}
}

// TestMispredictionDropsThePendingPlan: a decision is proposed only for the state from
// which it was made.
func TestMispredictionDropsThePendingPlan(t *testing.T) {
	x := newPendingTest(t, map[int][]state.Command{1: largeJobs("d", 40)})
	x.start(sample("node"))
	first, _ := x.next()
	second, _ := x.next()
	first.commit(true) // other bytes: the predictions are dropped
	second.commit(false)
	for i := range 40 { // each probe would share an entry with some commands of the plan
		probe := fmt.Sprint("p", i)
		x.start(largeJob(probe))
		waiting := true
		for waiting {
			f, names := x.next()
			f.commit(false)
			if slices.Contains(names, "d39") {
				t.Fatal("the whole plan was proposed")
			}
			waiting = !slices.Contains(names, probe)
		}
	}
}

// TestStopsAreProposedAtOnce: an instance that a decision stops may be wanted again before
// the next call, so its stop does not wait for that call.
func TestStopsAreProposedAtOnce(t *testing.T) {
	var stops []state.Command
	for i := range 20 {
		stops = append(stops, state.Command{ApplyPlan: &state.ApplyPlan{
			Stops: []state.StopAlloc{{ID: fmt.Sprint(i), Message: strings.Repeat("x", 40<<10)}}}})
	}
	x := newPendingTest(t, map[int][]state.Command{1: stops})
	x.start(sample("node"))
	inFlight := []*future{}
	for n := 0; n < 21; {
		f, names := x.next()
		n += len(names)
		inFlight = append(inFlight, f)
	}
	if len(inFlight) < 4 {
		t.Errorf("the stops are in %d entries", len(inFlight))
	}
	for _, f := range inFlight {
		f.commit(false)
	}
}

// TestWhichCommandsInvalidateThePendingPlan: all commands do, except unrelated ones and
// those after which the state itself refuses wrong placements.
func TestWhichCommandsInvalidateThePendingPlan(t *testing.T) {
	f := NewFSM()
	for i, id := range []string{"ready", "lost"} {
		f.Apply(&raft.Log{Index: uint64(i + 1), Data: encoded(t, sample(id))})
	}
	f.Apply(&raft.Log{Index: 3, Data: encoded(t, state.Command{SetNodeStatus: &state.SetNodeStatus{ID: "lost", Status: state.NodeLost}})})
	q := NewSequencer(newFakeLog(f), f, noDecision, nil)
	q.spec = f.speculate(3)
	placed := state.GroupKey{Namespace: "n", Job: "placed", Group: "g"}
	q.pending.commands = []state.Command{{AnswerSlots: &state.AnswerSlots{}}, {ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{Key: placed}}}}}
	order := func(job string, with *state.Job) state.Command {
		return state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{}, {Slot: state.Slot{Namespace: "n", Job: job}, Job: with}}}}
	}
	kept := map[string]state.Command{
		"reports":                 {AgentReports: &state.AgentReports{NodeID: "ready"}},
		"a local job":             {SubmitLocalJob: &state.SubmitLocalJob{}},
		"orders":                  order("placed", nil),
		"orders with another job": order("another", &state.Job{}),
		"documents":               {ChangeDocuments: &state.ChangeDocuments{}},
	}
	for name, cmd := range kept {
		if q.invalidatesPending(&cmd) {
			t.Errorf("%s: the plan is dropped", name)
		}
	}
	dropped := map[string]state.Command{
		"reports of a lost node":     {AgentReports: &state.AgentReports{NodeID: "lost"}},
		"reports of an unknown node": {AgentReports: &state.AgentReports{NodeID: "x"}},
		"orders with its job":        order("placed", &state.Job{}),
	}
	kinds := reflect.TypeFor[state.Command]()
	for i := range kinds.NumField() { // every other kind of command
		if k := kinds.Field(i); k.Type.Kind() == reflect.Pointer && k.Name != "AgentReports" && k.Name != "SubmitLocalJob" && k.Name != "ApplyOrders" && k.Name != "ChangeDocuments" {
			var cmd state.Command
			reflect.ValueOf(&cmd).Elem().Field(i).Set(reflect.New(k.Type.Elem()))
			dropped[k.Name] = cmd
		}
	}
	if len(dropped) < 10 {
		t.Fatalf("only %d kinds of commands were found", len(dropped))
	}
	for name, cmd := range dropped {
		if !q.invalidatesPending(&cmd) {
			t.Errorf("%s: the plan is kept", name)
		}
	}
}

// TestDecisionWithoutEffectIsRetriedAfterAPause: the commands of a decision change nothing,
// so the next decision follows after a pause.
func TestDecisionWithoutEffectIsRetriedAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFSM()
		log := newFakeLog(f)
		decisions := 0
		q := NewSequencer(log, f, func(*state.View) Decision {
			decisions++
			return Decision{Commands: []state.Command{{ApplyPlan: &state.ApplyPlan{}}}, RetryAfter: time.Second}
		}, func([]state.Result) {})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- q.Run(ctx) }()
		q.Wake()
		open := true
		for open {
			select {
			case f := <-log.applied:
				f.commit(false)
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
				open = false
			}
		}
		if decisions < 10 || decisions > 12 {
			t.Errorf("%d decisions in ten seconds", decisions)
		}
	})
}

// TestWaitedIsTheAgeOfTheOldestEntry: a region whose disks stall is unable to commit. It
// must report that while its master still leads.
func TestWaitedIsTheAgeOfTheOldestEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPendingTest(t, nil)
		if w := x.q.Waited(); w != 0 {
			t.Errorf("nothing is proposed, and waited for %s", w)
		}
		x.start(sample("a"))
		first, _ := x.next()
		time.Sleep(3 * time.Second)
		x.start(sample("b"))
		second, _ := x.next()
		time.Sleep(time.Second)
		if w := x.q.Waited(); w != 4*time.Second {
			t.Errorf("the oldest entry has waited for 4s, not %s", w)
		}
		first.commit(false)
		synctest.Wait()
		if w := x.q.Waited(); w != time.Second {
			t.Errorf("the next entry has waited for 1s, not %s", w)
		}
		second.commit(false)
		synctest.Wait()
		if w := x.q.Waited(); w != 0 {
			t.Errorf("all entries are committed, and waited for %s", w)
		}
	})
}
