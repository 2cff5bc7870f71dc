package sched

import (
	"slices"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestCheck: a cache that differs from the log is found and dropped. An equal cache stays.
func TestCheck(t *testing.T) {
	s := state.New()
	for i, id := range []string{"n1", "n2", "n3"} {
		s.Apply(uint64(i+1), state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: id, Name: id, Pool: "default", Capacity: state.Resources{CPUMilli: 1000}}}})
	}
	view := s.Snapshot()
	k := NewPlanner()
	if wrong := k.Check(view); len(wrong) > 0 || k.nodes != nil {
		t.Errorf("without a cache: %v", wrong)
	}
	k.table(view, nil)
	if wrong := k.Check(view); len(wrong) > 0 || k.nodes == nil {
		t.Errorf("an equal cache: %v", wrong)
	}
	for name, plant := range map[string]func(n *node){
		"free resources": func(n *node) { n.free.CPUMilli++ },
		"allocations":    func(n *node) { n.allocs = 4 },
		"ports":          func(n *node) { n.ports = []int32{80} },
		"tags":           func(n *node) { n.apart = []string{"x"} },
		"dedicated":      func(n *node) { n.dedicated = 1 },
	} {
		k.current = false
		k.table(view, nil)
		plant(&k.nodes.nodes[1])
		if wrong := k.Check(view); !slices.Equal(wrong, []string{"n2"}) || k.nodes != nil {
			t.Errorf("%s: %v differ, the cache is dropped: %t", name, wrong, k.nodes == nil)
		}
		k.current = false
		k.table(view, nil)
		if wrong := k.Check(view); len(wrong) > 0 {
			t.Errorf("%s: after the repair %v", name, wrong)
		}
	}
}
