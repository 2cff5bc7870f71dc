// Command simulate runs worlds of package world on all processors and prints a summary.
//
//	go run ./sim/world/simulate -seed 1 -worlds 5000
//	go run ./sim/world/simulate -seed 17 -worlds 1 -trace
//	go run -tags planted ./sim/world/simulate -worlds 2000 -planted
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/sim/world"
	"github.com/nusa-scheduler/nusa/sim/world/many"
)

func main() {
	o := many.Options{Out: os.Stdout}
	flag.Uint64Var(&o.Seed, "seed", 1, "seed of the first world")
	flag.Uint64Var(&o.Step, "step", 1, "step from one seed to the next")
	flag.IntVar(&o.Worlds, "worlds", 5000, "number of worlds")
	flag.IntVar(&o.Last, "last", 40, "trace lines that a violation prints")
	flag.BoolVar(&o.All, "all", false, "go on after a violation")
	planted := flag.Bool("planted", false, "plant one bug after the other, and fail if one is not found (build tag planted)")
	flag.StringVar(&o.Bug, "bug", "", "plant only this bug (with -planted or -trace)")
	trace := flag.Bool("trace", false, "print the whole trace of each world")
	profile := flag.String("cpuprofile", "", "write a profile of the processor time to this file")
	flag.Parse()
	if err := checkBug(o.Bug, *planted, *trace); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(2)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "simulate: no profile:", err)
			os.Exit(1)
		}
		defer pprof.StopCPUProfile()
	}
	if *trace {
		if o.Bug != "" {
			plant.Set(plant.Bug(o.Bug))
		}
		for i := range o.Worlds {
			_, failed := world.Run(o.Seed+uint64(i), io.Writer(os.Stdout))
			fmt.Println(failed.What)
		}
		return
	}
	if *planted {
		if !many.Planted(o) {
			os.Exit(1)
		}
		return
	}
	if !many.Run(o) {
		os.Exit(1)
	}
}

// checkBug refuses the name of a bug that would not be planted.
func checkBug(name string, planted, trace bool) error {
	switch {
	case name == "":
		return nil
	case !slices.Contains(plant.Bugs[:], plant.Bug(name)):
		return fmt.Errorf("-bug %q: no bug has this name; internal/plant lists the names", name)
	case !planted && !trace:
		return fmt.Errorf("-bug %q plants nothing without -planted or -trace: add one of them", name)
	}
	return nil
}
