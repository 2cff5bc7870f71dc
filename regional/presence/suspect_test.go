package presence

import (
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestSuspicion: the servers of a region started at 100 s with a log that ended at index
// 50. After that a master is elected.
func TestSuspicion(t *testing.T) {
	const over = 21 * s
	for _, c := range []struct {
		what     string
		start    Start
		ends     uint64
		nodes    []string
		accepted []string
		at       time.Duration
		want     bool
	}{
		{"a new server", Start{100 * s, 0}, 3, []string{"a"}, nil, 101 * s, false},
		{"a region without nodes", Start{100 * s, 50}, 50, nil, nil, 101 * s, false},
		{"no agent has connected", Start{100 * s, 50}, 50, []string{"a", "b"}, nil, 101 * s, true},
		{"one agent has connected", Start{100 * s, 50}, 50, []string{"a", "b"}, []string{"a"}, 101 * s, true},
		{"all agents have connected", Start{100 * s, 50}, 50, []string{"a", "b"}, []string{"b", "a"}, 101 * s, false},
		{"one that the log does not know", Start{100 * s, 50}, 50, []string{"a", "b"}, []string{"a", "c"}, 101 * s, true},
		{"the server replayed less than it had", Start{100 * s, 50}, 49, []string{"a"}, []string{"a"}, 101 * s, false},
		{"the log has grown under another master", Start{100 * s, 50}, 51, []string{"a"}, []string{"a"}, 101 * s, true},
		{"just before earlier leases are over", Start{100 * s, 50}, 51, []string{"a"}, nil, 121*s - 1, true},
		{"earlier leases are over", Start{100 * s, 50}, 51, []string{"a"}, nil, 121 * s, false},
	} {
		var nodes []*state.Node
		for _, id := range c.nodes {
			nodes = append(nodes, &state.Node{ID: id})
		}
		d := NewSuspicion(c.start, c.ends, over, slices.Values(nodes))
		for _, id := range c.accepted {
			d.Accepted(id)
		}
		if got := d.At(c.at); got != c.want {
			t.Errorf("%s: suspect %v", c.what, got)
		}
		if !c.want && d.At(c.at-over) {
			t.Errorf("%s: suspect again", c.what)
		}
	}
}
