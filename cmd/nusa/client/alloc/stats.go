package alloc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxStats bounds the instances that one command measures, because each instance is a
	// call to its node.
	maxStats = 500
	// statsAtOnce is the number of calls to nodes at the same time.
	statsAtOnce = 16
)

func statsCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "stats ID|JOB", Short: "Show what tasks use now", Args: cli.Positional("ID|JOB"),
		Long: `Shows what the tasks of one or several instances use now. With -o json or yaml each
of several instances is a record.

` + instanceNames + `
JOB and JOB/GROUP are all of their instances, JOB/GROUP/INDEX is one.`,
		Example: "  nusa alloc stats 1f3a\n  nusa alloc stats hello",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			all, n, err := findAllocs(ctx, c, args[0], false)
			switch {
			case err != nil:
				return err
			case len(all) > maxStats:
				return fmt.Errorf("%s has %d instances, and at most %d are asked at once: say which, %s", n, len(all), maxStats, nameAllocs(c, all))
			case len(all) > 1:
				return showStatsOfAll(ctx, c, all)
			}
			stats, err := c.Allocs().Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: all[0].GetId()})
			if err != nil {
				return err
			}
			return c.Print(stats, func(w *term.Screen) { writeStats(w, []allocUsage{{stats: stats}}) })
		}),
	}
}

// allocUsage holds the resources that an allocation uses, or why they are unknown. alloc is
// nil if only one allocation is shown.
type allocUsage struct {
	alloc *nusav1.Allocation
	stats *nusav1.AllocationStats
	err   string
}

// showStatsOfAll shows several allocations. An error of one allocation does not hide the
// others.
func showStatsOfAll(ctx context.Context, c *cli.Session, all []*nusav1.Allocation) error {
	rows := make([]allocUsage, len(all))
	var asked errgroup.Group
	asked.SetLimit(statsAtOnce)
	for i, a := range all {
		asked.Go(func() error {
			stats, err := c.Allocs().Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: a.GetId()})
			rows[i] = allocUsage{alloc: a, stats: stats}
			if err != nil {
				rows[i].err = strings.Join(cli.ErrorLines(c.Explain(err)), "; ")
			}
			return nil
		})
	}
	_ = asked.Wait() // each call stores its error
	if c.Output == "table" {
		writeStats(c.Screen(), rows)
	}
	failed := false
	for _, r := range rows {
		switch {
		case r.err != "":
			failed = true
			if c.Output != "table" {
				c.Warn("%s: %s", instance(r.alloc), r.err)
			}
		case c.Output != "table":
			if err := c.PrintLine(r.stats, nil); err != nil {
				return err
			}
		}
	}
	if failed {
		return &cli.ExitError{Code: cli.ExitFail}
	}
	return nil
}

// writeStats writes a table of the resources that each task uses. The table also has the
// mean CPU use since the start, in cores.
func writeStats(w *term.Screen, all []allocUsage) {
	t := term.NewTable("INSTANCE", "REGION", "NODE", "TASK", ">UP", ">CPU TIME", ">CORES USED", ">MEMORY USED", ">PEAK", ">PROCESSES", "#MESSAGE")
	for _, u := range all {
		var at [3]string
		if u.alloc != nil {
			at = [3]string{instance(u.alloc), u.alloc.GetRegion(), nodeOf(u.alloc)}
		}
		if u.err != "" {
			t.Row(at[0], at[1], at[2], "", "", "", "", "", "", "", u.err)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(u.stats.GetTasks())) {
			s := u.stats.GetTasks()[name]
			if s.GetMessage() != "" {
				t.Row(at[0], at[1], at[2], name, "", "", "", "", "", "", term.OneLine(s.GetMessage()))
				continue
			}
			cpu, mean, processes := "", "", ""
			if s.GetCpu() != nil {
				cpu = s.GetCpu().AsDuration().Round(time.Millisecond).String()
				if up := s.GetUp().AsDuration(); up > 0 {
					mean = fmt.Sprintf("%.3f", s.GetCpu().AsDuration().Seconds()/up.Seconds())
				}
			}
			if s.GetProcesses() >= 0 {
				processes = term.Count(s.GetProcesses())
			}
			t.Row(at[0], at[1], at[2], name, term.Age(s.GetUp()), cpu, mean, sizeOrBlank(s.GetMemoryBytes()), sizeOrBlank(s.GetMemoryPeakBytes()), processes, "")
		}
	}
	t.DropEmpty("INSTANCE", "REGION", "NODE", "MESSAGE")
	t.Write(w)
}

// sizeOrBlank returns a size, or "" if the driver does not report it.
func sizeOrBlank(bytes int64) string {
	if bytes < 0 {
		return ""
	}
	return strings.TrimSpace(term.Size(bytes))
}
