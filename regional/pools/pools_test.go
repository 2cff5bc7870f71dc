package pools_test

import (
	"iter"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/state"
)

func TestWeightsHaveBounds(t *testing.T) {
	for _, c := range []struct {
		w     pools.Weights
		field string
	}{
		{pools.Weights{}, ""},
		{pools.Weights{CPU: 100, Memory: 1, Quota: 100}, ""},
		{pools.Weights{CPU: -1}, "cpu"},
		{pools.Weights{Memory: 101}, "memory"},
		{pools.Weights{Quota: math.MaxInt32}, "quota"},
	} {
		if field, message := c.w.Fault(); field != c.field || (message == "") != (field == "") {
			t.Errorf("%+v: %q %q, want %q", c.w, field, message, c.field)
		}
	}
}

func TestScore(t *testing.T) {
	for _, c := range []struct {
		weight      int32
		share, want float64
	}{{100, 0, 0.5}, {100, 1, -0.5}, {100, 0.5, 0}, {40, 0.25, 0.1}, {0, 1, 0}, {100, 7, -0.5}, {100, -1, 0.5}} {
		if s := pools.Score(c.weight, c.share); math.Abs(s-c.want) > 1e-12 {
			t.Errorf("weight %d, share %v: %v, want %v", c.weight, c.share, s, c.want)
		}
	}
}

var nodes = []*state.Node{{ID: "a", Pool: "default"}, {ID: "b", Pool: "other"}, {ID: "c", Pool: "default", Status: state.NodeLeft}}

func all() iter.Seq[*state.Node] { return slices.Values(nodes) }

func measures(cpu, memory float64) func(string) (pools.Measured, bool) {
	return func(string) (pools.Measured, bool) { return pools.Measured{CPU: cpu, Memory: memory}, true }
}

func nothing(string) (pools.Measured, bool) { return pools.Measured{}, false }

// TestLoad: a load has the use of the nodes whose pools weigh it, and nothing else.
func TestLoad(t *testing.T) {
	weights := map[string]pools.Weights{"default": {CPU: 10}, "zero": {}}
	l := pools.Next(nil, weights, all(), measures(0.52, 0.9))
	if got := l.Of(nodes[0]); got.Use != (pools.Use{CPU: 50, Memory: pools.Unknown}) || got.Weights.CPU != 10 || !got.Weighs() {
		t.Errorf("a node of the pool: %+v", got)
	}
	if got := l.Of(nodes[1]); got.Weighs() || got != (pools.NodeLoad{}) {
		t.Errorf("a node of another pool: %+v", got)
	}
	if got := l.Of(nodes[2]).Use.CPU; got != pools.Unknown {
		t.Errorf("a node that has left: %v", got)
	}
	if got := pools.Next(l, weights, all(), nothing).Of(nodes[0]).Use.CPU; got != pools.Unknown {
		t.Errorf("a node without statistics: %v", got)
	}
	if got := pools.Next(l, weights, all(), measures(math.NaN(), 0)).Of(nodes[0]).Use.CPU; got != pools.Unknown {
		t.Errorf("a node that measures nonsense: %v", got)
	}
	if pools.Next(l, map[string]pools.Weights{"zero": {}}, all(), measures(1, 1)) != nil {
		t.Error("a load without weights is not nil")
	}
	var none *pools.Load
	if none.Of(nodes[0]).Weighs() {
		t.Error("no load weighs something")
	}
}

// TestNoiseChangesNothing: measurements that stay within 4 points of a value do not change the load, and
// the value is never further than that from the measurement.
func TestNoiseChangesNothing(t *testing.T) {
	weights := map[string]pools.Weights{"default": {CPU: 10}}
	rapid.Check(t, func(t *rapid.T) {
		var l *pools.Load
		share := rapid.Float64Range(-0.5, 1.5)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			m := share.Draw(t, "share")
			next := pools.Next(l, weights, all(), measures(m, 0))
			use, percent := float64(next.Of(nodes[0]).Use.CPU), 100*min(1, max(0, m))
			if math.Abs(use-percent) > 4+1e-9 || math.Mod(use, 5) != 0 {
				t.Fatalf("%v %% is used as %v", percent, use)
			}
			around := min(1, max(0, use/100+rapid.Float64Range(-0.0399, 0.0399).Draw(t, "noise")))
			if pools.Next(next, weights, all(), measures(around, 0)) != next {
				t.Fatalf("%v %% after %v changes the load", 100*around, use)
			}
			l = next
		}
	})
}
