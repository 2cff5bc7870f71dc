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

// todoTest is a sequencer whose decisions are large, and a log that the test
// commits.
type todoTest struct {
	*testing.T
	log *fakeLog
	q   *Sequencer
	// decide makes the commands, by how many nodes there are.
	decide map[int][]state.Command
	// settled has the number of nodes of each decision that settled.
	settled chan int
	ended   chan error
}

func newTodoTest(t *testing.T, decide map[int][]state.Command) *todoTest {
	f := NewFSM()
	x := &todoTest{T: t, log: newFakeLog(f), decide: decide, settled: make(chan int, 64), ended: make(chan error, 1)}
	x.q = NewSequencer(x.log, f, func(v *state.View) Decision {
		n := v.NodeCount()
		d := Decision{Commands: x.decide[n], OnCommitted: func() { x.settled <- n }}
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

func (x *todoTest) start(cmd state.Command) {
	if _, err := x.q.Propose(cmd); err != nil {
		x.Fatal(err)
	}
}

// largeJob is a command of 40 KiB that puts a job into the state.
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

// next is the entry that comes next, and the names of what it is about.
func (x *todoTest) next() (*future, []string) {
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

// TestALargeDecisionTakesTurns: what others have to say comes between its
// entries, and it settles when the last of them is committed.
func TestALargeDecisionTakesTurns(t *testing.T) {
	x := newTodoTest(t, map[int][]state.Command{1: largeJobs("d", 20)})
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
		t.Errorf("another's command waits: %q comes before it", third)
	}
	all := slices.Concat(names, more, third)
	second.commit(false)
	for f.commit(false); len(all) < 22; f.commit(false) {
		if f, names = x.next(); len(x.settled) > 0 {
			t.Errorf("settled before %q was committed", names)
		}
		all = append(all, names...)
	}
	if n := <-x.settled; n != 1 {
		t.Errorf("the decision about %d nodes settled", n)
	}
	decided := slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, "d") })
	if len(decided) != 20 || !slices.IsSorted(decided) {
		t.Errorf("carried out: %q", decided)
	}
}

// TestANodeVoidsWhatWasDecided: the rest of a decision is not carried out when
// nodes are others than it was about.
func TestANodeVoidsWhatWasDecided(t *testing.T) {
	x := newTodoTest(t, map[int][]state.Command{1: largeJobs("d", 20), 2: largeJobs("e", 3)})
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
	for n := range x.settled {
		if n == 1 {
			t.Error("a decision settled that was not carried out")
		} else if n == 2 {
			break
		}
	}
}

// TestWhatIsDecidedDiesWithItsState: it is not carried out on another state than
// the one that it was foreseen for.
func TestWhatIsDecidedDiesWithItsState(t *testing.T) {
	x := newTodoTest(t, map[int][]state.Command{1: largeJobs("d", 40)})
	x.start(sample("node"))
	first, _ := x.next()
	second, _ := x.next()
	first.commit(true) // as other bytes: what was foreseen is void
	second.commit(false)
	for i := range 40 { // each would be in an entry with some of it
		probe := fmt.Sprint("p", i)
		x.start(largeJob(probe))
		for came := false; !came; {
			f, names := x.next()
			f.commit(false)
			if slices.Contains(names, "d39") {
				t.Fatal("all was carried out")
			}
			came = slices.Contains(names, probe)
		}
	}
}

// TestStopsDoNotWait: an instance that a decision stops may be wanted again by
// the time of the next entry.
func TestStopsDoNotWait(t *testing.T) {
	var stops []state.Command
	for i := range 20 {
		stops = append(stops, state.Command{ApplyPlan: &state.ApplyPlan{
			Stops: []state.StopAlloc{{ID: fmt.Sprint(i), Message: strings.Repeat("x", 40<<10)}}}})
	}
	x := newTodoTest(t, map[int][]state.Command{1: stops})
	x.start(sample("node"))
	flying := []*future{}
	for n := 0; n < 21; {
		f, names := x.next()
		n += len(names)
		flying = append(flying, f)
	}
	if len(flying) < 4 {
		t.Errorf("they are in %d entries", len(flying))
	}
	for _, f := range flying {
		f.commit(false)
	}
}

// TestWhatVoidsADecision: only what the state sees to by itself, or what has
// nothing to do with it, leaves a decision as it is.
func TestWhatVoidsADecision(t *testing.T) {
	f := NewFSM()
	for i, id := range []string{"there", "away"} {
		f.Apply(&raft.Log{Index: uint64(i + 1), Data: encoded(t, sample(id))})
	}
	f.Apply(&raft.Log{Index: 3, Data: encoded(t, state.Command{SetNodeStatus: &state.SetNodeStatus{ID: "away", Status: state.NodeLost}})})
	q := NewSequencer(newFakeLog(f), f, nothingToDo, nil)
	q.spec = f.speculate(3)
	placed := state.GroupKey{Namespace: "n", Job: "placed", Group: "g"}
	q.pending.commands = []state.Command{{AnswerSlots: &state.AnswerSlots{}}, {ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{{Key: placed}}}}}
	order := func(job string, with *state.Job) state.Command {
		return state.Command{ApplyOrders: &state.ApplyOrders{Orders: []state.SlotOrder{{}, {Slot: state.Slot{Namespace: "n", Job: job}, Job: with}}}}
	}
	left := map[string]state.Command{
		"reports":                 {AgentReports: &state.AgentReports{NodeID: "there"}},
		"a job of the region's":   {SubmitLocalJob: &state.SubmitLocalJob{}},
		"orders":                  order("placed", nil),
		"orders with another job": order("another", &state.Job{}),
	}
	for name, cmd := range left {
		if q.invalidatesPending(&cmd) {
			t.Errorf("%s: the decision is void", name)
		}
	}
	void := map[string]state.Command{
		"reports of a node that was away": {AgentReports: &state.AgentReports{NodeID: "away"}},
		"reports of an unknown node":      {AgentReports: &state.AgentReports{NodeID: "x"}},
		"orders with its job":             order("placed", &state.Job{}),
	}
	kinds := reflect.TypeFor[state.Command]()
	for i := range kinds.NumField() { // every other kind of command
		if k := kinds.Field(i); k.Type.Kind() == reflect.Pointer && k.Name != "AgentReports" && k.Name != "SubmitLocalJob" && k.Name != "ApplyOrders" {
			var cmd state.Command
			reflect.ValueOf(&cmd).Elem().Field(i).Set(reflect.New(k.Type.Elem()))
			void[k.Name] = cmd
		}
	}
	if len(void) < 10 {
		t.Fatalf("only %d kinds of commands were found", len(void))
	}
	for name, cmd := range void {
		if !q.invalidatesPending(&cmd) {
			t.Errorf("%s: the decision goes on", name)
		}
	}
}

// TestVainDecisionsRest: commands that change nothing are decided again after the
// pause only.
func TestVainDecisionsRest(t *testing.T) {
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
		for open := true; open; {
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
