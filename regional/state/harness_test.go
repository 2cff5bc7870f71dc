package state

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

const second = int64(time.Second)

// log applies commands to a state, each at the next index.
type log struct {
	t *testing.T
	*State
	now int64
	idx uint64
}

func newLog(t *testing.T) *log {
	l := &log{t: t, State: New(), now: 1000 * second}
	l.ok(Command{Bootstrap: &Bootstrap{"c", "r"}})
	return l
}

func (l *log) do(c Command) Result {
	l.idx++
	c.NowUnixNano = l.now
	return l.Apply(l.idx, c)
}

// ok applies a command. The test fails if a part of the command is skipped.
func (l *log) ok(c Command) Result {
	l.t.Helper()
	r := l.do(c)
	if r.Err != nil || len(r.Skipped) > 0 {
		l.t.Fatalf("%v, skipped %v", r.Err, r.Skipped)
	}
	return r
}

func (l *log) fails(c Command, want error) {
	l.t.Helper()
	before := l.Snapshot().Hash()
	if r := l.do(c); !errors.Is(r.Err, want) || r.Changed {
		l.t.Fatalf("got %v, changed %v, want %v", r.Err, r.Changed, want)
	}
	l.idx-- // only the index may differ
	l.View.index--
	if l.Snapshot().Hash() != before {
		l.t.Fatal("a command that failed has changed the state")
	}
}

func (l *log) skipped(c Command, reason Reason) {
	l.t.Helper()
	r := l.do(c)
	if len(r.Skipped) != 1 || r.Skipped[0].Reason != reason || r.Skipped[0].Message == "" {
		l.t.Fatalf("got %+v, want one %s", r.Skipped, reason)
	}
}

func testNode(id string) Command {
	return Command{UpsertNode: &UpsertNode{Node{
		ID: id, Name: id, Pool: "default", PortMin: 20000, PortMax: 20009,
		Capacity: Resources{4000, 8 << 30, 100 << 30},
		GPUs:     []GPU{{ID: "g0", Model: "t4"}, {ID: "g1", Model: "t4"}},
	}}}
}

var webKey = GroupKey{Namespace: "default", Job: "api", Group: "web"}

func testJob(version int64, change func(*Group)) *Job {
	g := Group{
		Name: "web", Hash: uint64(version),
		Ask:        Ask{Resources: Resources{1000, 1 << 30, 0}, Pool: "default"},
		Reschedule: Reschedule{Attempts: 2, From: 5 * time.Second, To: 60 * time.Second},
	}
	if change != nil {
		change(&g)
	}
	return &Job{Version: version, Type: Service, Spec: []byte(fmt.Sprint("spec", version)), Groups: []Group{g}}
}

func testOrder(from, to int32, generation int64, job *Job, change func(*Slot)) Command {
	s := Slot{
		Namespace: "default", Job: "api", Group: "web", From: from, To: to,
		Generation: generation, Revision: generation, JobVersion: job.Version, Desired: Run, State: SlotOffered,
	}
	if change != nil {
		change(&s)
	}
	return Command{ApplyOrders: &ApplyOrders{Orders: []SlotOrder{{Slot: s, Job: job}}}}
}

func testPlace(id string, index int32, node string, version int64) Command {
	return Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{{
		Key: webKey, JobVersion: version, Allocs: []PlaceAlloc{{ID: id, Index: index, NodeID: node, Why: "test"}},
	}}}}
}

func testReport(node string, r AllocReport) Command {
	return Command{AgentReports: &AgentReports{NodeID: node, Reports: []AllocReport{r}}}
}

func testStop(id string) Command {
	return Command{ApplyPlan: &ApplyPlan{Stops: []StopAlloc{{ID: id, Reason: ReasonSuperseded}}}}
}

// running returns a log with one running instance on n1.
func running(t *testing.T, change func(*Group)) *log {
	l := newLog(t)
	l.ok(testNode("n1"))
	l.ok(testNode("n2"))
	l.ok(testOrder(0, 2, 10, testJob(1, change), nil))
	l.ok(testPlace("a1", 0, "n1", 1))
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Running}))
	return l
}
