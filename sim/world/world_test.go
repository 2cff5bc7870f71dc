package world

import (
	"bytes"
	"testing"
)

// TestSameSeedSameTrace: the trace depends only on the seed.
func TestSameSeedSameTrace(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		var a, b bytes.Buffer
		traced, _ := Run(seed, &a)
		Run(seed, &b)
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Fatalf("seed %d: two traces", seed)
		}
		stats, failed := Run(seed, nil)
		if failed.What == "" && stats.Steps == 0 {
			t.Fatal("nothing happened")
		}
		if stats != traced {
			t.Fatalf("seed %d: with a trace %+v, without %+v", seed, traced, stats)
		}
	}
}
