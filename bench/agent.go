package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/bench/agent"
)

// agentCase is one run of `nusa bench agent`.
type agentCase struct {
	args, goal string
	met        func(*agent.Result) bool
}

func agentCases(quick bool) []agentCase {
	if quick {
		return []agentCase{{args: "--tasks 5 --idle 500ms --batch 50"}}
	}
	return []agentCase{
		{
			args: "--tasks 100 --idle 6s --batch 1000",
			goal: "running p50 ≤ 20 ms, idle ≤ 35 MB and ≤ 0.005 core, before and after, ≥ 200 /s",
			met: func(r *agent.Result) bool {
				return r.StartMS.P50 <= 20 && max(r.Idle.RSSMB, r.Rested.RSSMB) <= 35 && max(r.Idle.CPUCores, r.Rested.CPUCores) <= 0.005 && r.BatchPerS >= 200
			},
		},
		{args: "--tasks 100 --idle 6s --batch 20000", goal: "no growth", met: func(r *agent.Result) bool { return len(r.Grown) == 0 }},
	}
}

// agentMeasured is a case and the results of its runs.
type agentMeasured struct {
	agentCase
	results []*agent.Result
}

func (o options) agents(ctx context.Context) ([]agentMeasured, error) {
	var out []agentMeasured
	for _, c := range agentCases(o.quick) {
		m := agentMeasured{agentCase: c}
		for range o.runs {
			r, err := measureOne[agent.Result](ctx, o, "agent", c.args)
			if err != nil {
				return nil, err
			}
			m.results = append(m.results, r)
		}
		out = append(out, m)
	}
	return out, nil
}

// printAgents writes the section about agents. measured is a line that names the day and
// the commit of the figures; it is empty when they are those of the whole page.
func printAgents(w io.Writer, all []agentMeasured, measured string) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n"+agentsHeading+"\n\n`nusa bench agent …`: real processes, each under its supervisor. Running is the time\nfrom the order to the report. Idle is measured while all tasks run, before the batch and\nafter it. The agent is then at rest and is not asked for its metrics, because that takes\nsome MB more for up to a minute. Batch is the rate of commands that end at once. The order\nof a command is removed when the command is reported complete. CPU is the CPU time of the\nagent, and that of a command with its supervisor.\n"+measured+"\n")
	fmt.Fprint(w, "| arguments | running p50 / p99 ms | idle MB | idle, cores | a supervisor MB (own share) | batch /s | CPU ms each | goal | reached |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range all {
		for _, r := range m.results {
			idle := " | | "
			if i, j := r.Idle, r.Rested; i != nil && j != nil {
				idle = fmt.Sprintf("%s, %s | %.4f, %.4f | %s (%s)", short(i.RSSMB), short(j.RSSMB), i.CPUCores, j.CPUCores, short(i.SupervisorRSSMB), short(i.SupervisorPSSMB))
			}
			reached := ""
			if m.met != nil {
				reached = "no"
				if m.met(r) {
					reached = "yes"
				}
			}
			fmt.Fprintf(w, "| `%s` | %s / %s | %s | %s | %s + %s | %s | %s |\n", m.args, short(r.StartMS.P50), short(r.StartMS.P99),
				idle, number(r.BatchPerS), short(r.AgentCPUMSPerTask), short(r.TaskCPUMS), m.goal, reached)
		}
	}
	fmt.Fprint(w, "\nWhat could grow, after each quarter of the batch, when the agent has released memory.\nHeld is the live heap that its garbage collector found. A quantity counts as grown if it\nis larger at the end than after half of the batch, by more than noise (500 kB held, 2 MB\nresident).\n\n| arguments | after | MB held | MB resident | goroutines | files | control groups | folders | children | store KiB |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range all {
		for _, r := range m.results {
			for _, s := range r.Sizes {
				fmt.Fprintf(w, "| `%s` | %s | %.2f | %s | %d | %d | %d | %d | %d | %d |\n", m.args, number(float64(s.After)), s.HeldMB, short(s.RSSMB), s.Goroutines, s.Files, s.Cgroups, s.Folders, s.Children, s.StoreBytes>>10)
			}
		}
	}
}

// agentsHeading is the heading of the section.
const agentsHeading = "## An agent"

// agentsOnly measures the agent alone and replaces its section of the existing page.
func (o options) agentsOnly(ctx context.Context) error {
	began, machine := time.Now(), thisMachine(ctx)
	all, err := o.agents(ctx)
	if err != nil {
		return err
	}
	var section bytes.Buffer
	printAgents(&section, all, fmt.Sprintf("Measured by itself on %s, with Nusa %s.\n", began.Format(time.DateOnly), machine.commit))
	return o.replace(section.Bytes(), agentsHeading, "## Round trips predicted")
}

// replace replaces the section with this heading in the existing page. If the page has no
// such section, replace inserts the section before the heading next.
func (o options) replace(section []byte, heading, next string) error {
	if o.out == "" {
		_, err := os.Stdout.Write(section)
		return err
	}
	page, err := os.ReadFile(o.out)
	if err != nil {
		return err
	}
	page, err = replaceSection(page, section, heading, next)
	if err != nil {
		return fmt.Errorf("%s: %w", o.out, err)
	}
	return os.WriteFile(o.out, page, 0o644)
}

// replaceSection is replace for a page in memory. The page must have the heading next.
func replaceSection(page, section []byte, heading, next string) ([]byte, error) {
	to := bytes.Index(page, []byte("\n"+next+"\n"))
	if to < 0 {
		return nil, fmt.Errorf("has no %q", next)
	}
	from := bytes.Index(page[:to], []byte("\n"+heading+"\n"))
	if from < 0 {
		from = to
	}
	return slices.Concat(page[:from], section, page[to:]), nil
}
