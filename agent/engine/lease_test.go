package engine

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// TestNoDeadlineForWhatMustStop: the setup of a run may take longer than its node was cut
// off. Another node may run the instance by then, and the stop is ordered before the lease
// is granted again: the run must not begin under the new lease.
func TestNoDeadlineForWhatMustStop(t *testing.T) {
	a := newAlloc(&order{spec: reconcile.Alloc{ID: "a", Binding: lease.Node}})
	e := &Engine{cfg: Config{Clock: func() time.Duration { return time.Second }}, events: make(chan func()), allocs: map[string]*alloc{"a": a}}
	e.leases.Granted(e.leases.Request(0), 10*time.Second, 0)
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
