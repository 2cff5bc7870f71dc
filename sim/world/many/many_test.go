package many

import (
	"bytes"
	"testing"

	"github.com/nusa-scheduler/nusa/sim/world"
)

// TestWorlds runs a few hundred worlds; `make sim` runs thousands.
func TestWorlds(t *testing.T) {
	var out bytes.Buffer
	worlds := 150
	if testing.Short() {
		worlds = 20
	}
	if !Run(Options{Seed: 1_000_000, Worlds: worlds, Last: 60, Out: &out}) {
		t.Error(out.String())
	}
	t.Log(out.String())
}

// TestSameSeedSameTrace: the trace depends only on the seed.
func TestSameSeedSameTrace(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		var a, b bytes.Buffer
		traced, _ := world.Run(seed, &a)
		world.Run(seed, &b)
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Fatalf("seed %d: two traces", seed)
		}
		stats, failed := world.Run(seed, nil)
		if failed.What == "" && stats.Steps == 0 {
			t.Fatal("nothing happened")
		}
		if stats != traced {
			t.Fatalf("seed %d: with a trace %+v, without %+v", seed, traced, stats)
		}
	}
}
