package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/ordertest"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// boundOrder returns an order for a task that leases bind. No restart is allowed.
func boundOrder(index uint64, b nusav1.LeaseBinding, startDelay time.Duration) *nusav1.AllocOrder {
	return ordertest.New("aaaa", index, "mock", map[string]any{"start_delay": startDelay.String()}, func(o *nusav1.AllocOrder, _ *nusav1.Group) { o.Binding = b })
}

// granted requests the leases and grants them at once. 0: no lease.
func (l *life) granted(node, region time.Duration) {
	id, _, ok := l.engine.RequestLease(context.Background(), time.Second)
	if ok {
		l.engine.LeaseGranted(context.Background(), lease.Grant{ID: id, Node: node, Region: region}, time.Second)
	}
	synctest.Wait()
}

// report returns the report of an allocation.
func (l *life) report(id string) (r *nusav1.AllocReport) {
	l.engine.do(context.Background(), func() {
		if a := l.engine.allocs[id]; a != nil {
			r = makeReport(a.order, a.act, a.details, l.engine.verdict(a))
		}
	})
	return r
}

// TestSlowStartUnderALease: a driver takes longer to start a task than the lease lasts. If
// the lease is renewed, the renewals reach the run before it begins. If not, the run does
// not begin, and the agent tries again when the lease is back.
func TestSlowStartUnderALease(t *testing.T) {
	for _, renewed := range []bool{true, false} {
		t.Run(fmt.Sprintf("renewed=%t", renewed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := mock.New(mock.Config{Clock: clock})
				l := live(t, t.TempDir(), drv, always)
				defer func() { l.kill() }()
				l.granted(10*time.Second, 0)
				l.give(boundOrder(1, nusav1.LeaseBinding_LEASE_BINDING_NODE, 25*time.Second))
				for range 10 {
					time.Sleep(3 * time.Second)
					if renewed {
						l.granted(10*time.Second, 0)
					}
				}
				synctest.Wait()
				if !renewed {
					if r := l.report("aaaa"); len(drv.Running()) != 0 || r.GetReason() != nusav1.Reason_REASON_LEASE_EXPIRED || r.GetState() != nusav1.AllocState_ALLOC_STATE_STARTING {
						t.Errorf("running %v, reported as %v", drv.Running(), r)
					}
					for range 20 {
						l.granted(10*time.Second, 0)
						time.Sleep(3 * time.Second)
					}
				}
				want := driver.ID{Alloc: "aaaa", Task: "main", Run: 2}
				if renewed {
					want.Run = 1
				}
				if run := drv.Running(); len(run) != 1 || run[0] != want {
					t.Errorf("running %v, want %s", run, want)
				}
				if st := l.task("aaaa"); st.GetRestarts() != 0 || st.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING {
					t.Errorf("reported as %v", st)
				}
			})
		})
	}
}

// TestLeaseLostAndRegained: in random order leases end and come back, and agents are killed
// and start again. A task never runs after the latest deadline that its supervisor may
// know, and never twice at the same time. No restart is counted, because none is allowed.
// In the end the task runs.
func TestLeaseLostAndRegained(t *testing.T) {
	bindings := []nusav1.LeaseBinding{nusav1.LeaseBinding_LEASE_BINDING_NODE, nusav1.LeaseBinding_LEASE_BINDING_REGION, nusav1.LeaseBinding_LEASE_BINDING_BOTH}
	for seed := range 40 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				draw := rand.New(rand.NewPCG(uint64(seed), 1))
				binding := bindings[seed%len(bindings)]
				drv, dir := mock.New(mock.Config{Clock: clock}), t.TempDir()
				l := live(t, dir, drv, always)
				defer func() { l.kill() }()
				l.give(boundOrder(1, binding, time.Duration(seed%4)*time.Second))
				var node, region time.Duration // the greatest deadlines granted so far
				for range 40 {
					n := draw.IntN(100)
					length := time.Duration(n%10) * time.Second
					switch {
					case n < 25:
						node = max(node, clock()+length)
						l.granted(length, 0)
					case n < 50:
						region = max(region, clock()+length)
						l.granted(0, length)
					case n < 70:
						node, region = max(node, clock()+length), max(region, clock()+length)
						l.granted(length, length)
					case n < 80:
						l.kill()
						l = live(t, dir, drv, always)
					}
					time.Sleep(time.Duration(n%7) * time.Second)
					synctest.Wait()
					end := map[nusav1.LeaseBinding]time.Duration{bindings[0]: node, bindings[1]: region, bindings[2]: min(node, region)}[binding]
					if run := drv.Running(); len(run) > 1 || len(run) == 1 && clock() >= end {
						t.Fatalf("at %s %v run, the latest deadline is %s", clock(), run, end)
					}
				}
				for range 10 {
					l.granted(30*time.Second, 30*time.Second)
					time.Sleep(3 * time.Second)
				}
				synctest.Wait()
				if st := l.task("aaaa"); len(drv.Running()) != 1 || st.GetRestarts() != 0 || l.ended("aaaa") != nil {
					t.Errorf("in the end %v run, reported as %v", drv.Running(), l.report("aaaa"))
				}
			})
		})
	}
}

// TestNewBindingReachesTheRun: an order that names other leases moves the deadline of the
// running task, to an earlier or a later time.
func TestNewBindingReachesTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := mock.New(mock.Config{Clock: clock})
		l := live(t, t.TempDir(), drv, always)
		defer func() { l.kill() }()
		l.granted(60*time.Second, 10*time.Second)
		for i, b := range []nusav1.LeaseBinding{nusav1.LeaseBinding_LEASE_BINDING_REGION, nusav1.LeaseBinding_LEASE_BINDING_NODE, nusav1.LeaseBinding_LEASE_BINDING_BOTH, nusav1.LeaseBinding_LEASE_BINDING_NONE} {
			l.give(boundOrder(uint64(i+1), b, 0))
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		if run := drv.Running(); len(run) != 1 || run[0].Run != 1 {
			t.Errorf("without a lease that binds it %v run", run)
		}
		l.granted(60*time.Second, 10*time.Second)
		l.give(boundOrder(9, nusav1.LeaseBinding_LEASE_BINDING_BOTH, 0))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if run := drv.Running(); len(run) != 0 {
			t.Errorf("after the region's lease %v run", run)
		}
	})
}

// TestNoDeadlineForWhatMustStop: a node is cut off and returns while a run is still being
// set up. Meanwhile another node may have started the instance. The stop is ordered before
// the lease is granted again, so the run must not begin under the new lease.
func TestNoDeadlineForWhatMustStop(t *testing.T) {
	a := newAlloc(&order{spec: reconcile.Alloc{ID: "a", Binding: lease.Node}})
	e := &Engine{cfg: Config{Clock: func() time.Duration { return time.Second }}, events: make(chan func()), allocs: map[string]*alloc{"a": a}}
	e.leases.Granted(lease.Grant{ID: e.leases.Request(0), Node: 10 * time.Second, Region: 0}, 0)
	go func() {
		for f := range e.events {
			f()
		}
	}()
	defer close(e.events)
	for _, c := range []struct {
		name    string
		want    reconcile.Want
		closing *reconcile.Outcome
		held    bool
	}{
		{"wanted", reconcile.Run, nil, true},
		{"ordered to stop", reconcile.Stop, nil, false},
		{"forgotten", reconcile.Forget, nil, false},
		{"about to end", reconcile.Run, &reconcile.Outcome{State: reconcile.Failed}, false},
	} {
		a.spec.Want, a.act.Closing = c.want, c.closing
		if d, held := e.deadline(t.Context(), "a"); held != c.held || held && d.At != 10*time.Second {
			t.Errorf("%s: deadline %v, held %v", c.name, d, held)
		}
	}
}

// TestNewestNamesTheLongestStopTime: only tasks that a lease binds and that have not ended
// count.
func TestNewestNamesTheLongestStopTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := live(t, t.TempDir(), mock.New(mock.Config{Clock: clock}), always)
		defer func() { l.kill() }()
		l.granted(time.Minute, 0)
		order := func(id string, index uint64, b nusav1.LeaseBinding, kill time.Duration) *nusav1.AllocOrder {
			return ordertest.New(id, index, "mock", nil, func(o *nusav1.AllocOrder, g *nusav1.Group) {
				o.Binding = b
				for _, task := range g.GetTasks() {
					task.KillTimeout = durationpb.New(kill)
				}
			})
		}
		l.give(order("aaaa", 1, nusav1.LeaseBinding_LEASE_BINDING_NODE, 30*time.Second))
		l.give(order("bbbb", 2, nusav1.LeaseBinding_LEASE_BINDING_NONE, 50*time.Second))
		newest, stop, err := l.engine.Newest(context.Background())
		if err != nil || newest.GetIndex() != 2 || stop != 30*time.Second {
			t.Errorf("index %d, %s, %v", newest.GetIndex(), stop, err)
		}
	})
}
