package world

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// RunPlanted plants each bug in turn and runs worlds until one shows a violation. False:
// a bug has survived all worlds. Only a build with the tag `planted` has the bugs.
func RunPlanted(o Options) bool {
	survived := 0
	for _, b := range plant.Bugs {
		if o.Bug != "" && o.Bug != string(b) {
			continue
		}
		plant.Set(b)
		last := Summary{}
		found := false
		for from := 0; from < o.Worlds && !found; from += 100 {
			part := o
			part.Seed, part.Worlds, part.Last, part.Quiet = o.Seed+uint64(from), min(100, o.Worlds-from), 0, true
			last = runAll(part)
			found = last.Violations > 0
		}
		if !found {
			survived++
			fmt.Fprintf(o.Out, "%-34s SURVIVED %d worlds\n", b, o.Worlds)
			continue
		}
		fmt.Fprintf(o.Out, "%-34s found by seed %d: %s\n", b, last.Seed, last.First)
	}
	plant.Set("")
	fmt.Fprintf(o.Out, "%d bugs, %d found, %d survived\n", len(plant.Bugs), len(plant.Bugs)-survived, survived)
	return survived == 0
}
