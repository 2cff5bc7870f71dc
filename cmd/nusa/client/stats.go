package client

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxStats is of how many instances the use is asked for: each is a question
	// to its node.
	maxStats = 500
	// statsAtOnce is how many are asked at a time.
	statsAtOnce = 16
)

func allocStats(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "stats ID|JOB", Short: "Show what tasks use now", Args: takes("ID|JOB"),
		Long: `Shows what the tasks of an instance, or of several, use now. With -o json or yaml
each instance of several is a record.

` + instanceNames + `
JOB and JOB/GROUP are all of their instances, JOB/GROUP/INDEX is one.`,
		Example: "  nusa alloc stats 1f3a\n  nusa alloc stats hello",
		RunE: s.run(func(c *caller, args []string) error {
			ctx, cancel := c.call()
			defer cancel()
			all, n, err := c.find(ctx, args[0], false)
			switch {
			case err != nil:
				return err
			case len(all) > maxStats:
				return fmt.Errorf("%s has %d instances, and at most %d are asked at once: say which, %s", n, len(all), maxStats, c.named(all))
			case len(all) > 1:
				return c.statsOfAll(ctx, all)
			}
			stats, err := c.allocs().Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: all[0].GetId()})
			if err != nil {
				return err
			}
			return c.print(stats, func(w io.Writer) { c.view().allocStats(w, []used{{stats: stats}}) })
		}),
	}
}

// used is what an allocation uses, or why that is not known. Without the
// allocation it is the only one.
type used struct {
	alloc *nusav1.Allocation
	stats *nusav1.AllocationStats
	err   string
}

// statsOfAll shows several. One that cannot be asked does not hide the others.
func (c *caller) statsOfAll(ctx context.Context, all []*nusav1.Allocation) error {
	rows := make([]used, len(all))
	var asked errgroup.Group
	asked.SetLimit(statsAtOnce)
	for i, a := range all {
		asked.Go(func() error {
			stats, err := c.allocs().Stats(ctx, &nusav1.AllocationStatsRequest{Allocation: a.GetId()})
			rows[i] = used{alloc: a, stats: stats}
			if err != nil {
				rows[i].err = strings.Join(errorLines(c.readable(err)), "; ")
			}
			return nil
		})
	}
	_ = asked.Wait() // each keeps its error
	if c.output == "table" {
		c.view().allocStats(c.out, rows)
	}
	failed := false
	for _, r := range rows {
		switch {
		case r.err != "":
			failed = true
			if c.output != "table" {
				c.warn("%s: %s", instance(r.alloc), r.err)
			}
		case c.output != "table":
			if err := c.printLine(r.stats, nil); err != nil {
				return err
			}
		}
	}
	if failed {
		return &exitError{code: exitFail}
	}
	return nil
}

// allocStats shows CPU as the time used and its mean in cores since the start.
func (v view) allocStats(w io.Writer, all []used) {
	t := newTable("INSTANCE", "REGION", "NODE", "TASK", ">UP", ">CPU TIME", ">CORES", ">MEMORY", ">PEAK", ">PROCESSES", "MESSAGE")
	for _, u := range all {
		var at [3]string
		if u.alloc != nil {
			at = [3]string{instance(u.alloc), u.alloc.GetRegion(), nodeOf(u.alloc)}
		}
		if u.err != "" {
			t.row(at[0], at[1], at[2], "", "", "", "", "", "", "", u.err)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(u.stats.GetTasks())) {
			s := u.stats.GetTasks()[name]
			if s.GetMessage() != "" {
				t.row(at[0], at[1], at[2], name, "", "", "", "", "", "", plain(s.GetMessage()))
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
				processes = count(s.GetProcesses())
			}
			t.row(at[0], at[1], at[2], name, age(s.GetUp()), cpu, mean, told(s.GetMemoryBytes()), told(s.GetMemoryPeakBytes()), processes, "")
		}
	}
	t.dropEmpty("INSTANCE", "REGION", "NODE", "MESSAGE")
	t.write(w, v.palette)
}

// told is a size, "" where the driver does not tell it.
func told(bytes int64) string {
	if bytes < 0 {
		return ""
	}
	return strings.TrimSpace(size(bytes))
}
