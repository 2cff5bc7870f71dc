package sched_test

import (
	"testing"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestSumDoesNotCountNodesThatLeft: a node that left is not lost. Neither a lost node nor
// one that left counts as capacity.
func TestSumDoesNotCountNodesThatLeft(t *testing.T) {
	w := newWorld()
	for _, line := range []string{
		"node n1 cpu=1000", "node n2 cpu=1000", "node n3 cpu=1000", "node n4 cpu=1000", "node n5 cpu=1000",
		"status n2 lost", "status n3 left", "status n4 left", "drain n5",
	} {
		w.run(t, "sum", line)
	}
	got := sched.Sum(w.st.Snapshot())
	want := sched.Totals{Ready: 2, Lost: 1, Left: 2, Draining: 1, Capacity: state.Resources{CPUMilli: 2000}, Free: state.Resources{CPUMilli: 1000}}
	got.Capacity.MemoryBytes, got.Capacity.DiskBytes, got.Free.MemoryBytes, got.Free.DiskBytes = 0, 0, 0, 0
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
