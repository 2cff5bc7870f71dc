package many

import (
	"bytes"
	"testing"
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
