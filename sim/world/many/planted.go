package many

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/sim/world"
)

// planted holds the violations that one bug has shown.
type planted struct {
	bug plant.Bug
	// found is the first violation of an invariant that the bug breaks. unclear is the first
	// violation that shows only that the world does not converge.
	found, unclear *world.Violation
	worlds         int
	// healthy is the number of violations that the same world also has without the bug.
	healthy int
}

// Planted plants each bug in turn. It runs worlds until one shows a violation that the same
// world does not have without the bug. It returns false if a bug has survived all worlds. Only a
// build with the tag `planted` has the bugs.
func Planted(o Options) bool {
	all, survived := 0, 0
	for _, b := range plant.Bugs {
		if o.Bug != "" && o.Bug != string(b) {
			continue
		}
		all++
		p := searchPlanted(o, b)
		switch {
		case p.found != nil:
			fmt.Fprintf(o.Out, "%-34s found by seed %d: %s\n", b, p.found.Seed, p.found.What)
		case p.unclear != nil:
			survived++
			fmt.Fprintf(o.Out, "%-34s SURVIVED %d worlds; seed %d only: %s\n", b, p.worlds, p.unclear.Seed, p.unclear.What)
		default:
			survived++
			fmt.Fprintf(o.Out, "%-34s SURVIVED %d worlds; %d seeds fail without it, too\n", b, p.worlds, p.healthy)
		}
	}
	plant.Set("")
	fmt.Fprintf(o.Out, "%d bugs, %d found, %d survived\n", all, all-survived, survived)
	return survived == 0
}

// batch is how many worlds run with a bug before their violations are looked at.
const batch = 4

// searchPlanted runs worlds with a bug until one of them shows the bug.
func searchPlanted(o Options, b plant.Bug) planted {
	p := planted{bug: b}
	for p.worlds < o.Worlds && p.found == nil {
		part := o
		part.Worlds, part.Quiet, part.All = min(batch, o.Worlds-p.worlds), true, true
		part.Seed, part.Life = o.Seed+uint64(p.worlds), world.NeedsLife(b)
		if part.Life {
			part.Seed = o.Seed + uint64(p.worlds)/world.Lives*world.LivesOf
		}
		plant.Set(b)
		sum := runAll(part)
		p.worlds += part.Worlds
		plant.Set("")
		for i := range sum.Found {
			v := &sum.Found[i]
			if p.found != nil || p.unclear != nil && !world.Shows(b, *v) {
				continue
			}
			if _, v := world.Run(v.Seed, nil); v.What != "" {
				p.healthy++
				continue
			}
			if world.Shows(b, *v) {
				p.found = v
			} else {
				p.unclear = v
			}
		}
	}
	return p
}
