package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nusa-scheduler/nusa/cmd/nusa/bench"
)

// agentCase is one run of `nusa bench agent`.
type agentCase struct {
	args, goal string
	met        func(*bench.NodeResult) bool
}

func agentCases(quick bool) []agentCase {
	if quick {
		return []agentCase{{args: "--tasks 5 --idle 500ms --batch 50"}}
	}
	return []agentCase{
		{
			args: "--tasks 100 --idle 20s --batch 1000",
			goal: "running ≤ 20 ms, idle ≤ 35 MB and ≤ 0.005 core, ≥ 200 /s",
			met: func(r *bench.NodeResult) bool {
				return r.StartMS.P50 <= 20 && r.Idle.RSSMB <= 35 && r.Idle.CPUCores <= 0.005 && r.BatchPerS >= 200
			},
		},
		{
			args: "--tasks 1 --idle 0 --batch 10000", goal: "no growth",
			met: func(r *bench.NodeResult) bool {
				w, f := r.Warm, r.Final
				return f.RSSMB <= 1.1*w.RSSMB && f.Goroutines <= w.Goroutines+5 && f.Files <= w.Files+5 && f.Cgroups <= w.Cgroups &&
					f.Folders <= w.Folders && f.Children <= w.Children && f.StoreBytes <= 2*w.StoreBytes
			},
		},
	}
}

// agentMeasured is a case and the results of its runs.
type agentMeasured struct {
	agentCase
	results []*bench.NodeResult
}

func (o options) agents(ctx context.Context) ([]agentMeasured, error) {
	var out []agentMeasured
	for _, c := range agentCases(o.quick) {
		m := agentMeasured{agentCase: c}
		for range o.runs {
			fmt.Fprintf(os.Stderr, "nusa bench agent %s\n", c.args)
			text, err := command(ctx, o.nusa, append([]string{"bench", "agent", "-o", "json"}, strings.Fields(c.args)...)...)
			r := &bench.NodeResult{}
			if err == nil {
				err = json.Unmarshal(text, r)
			}
			if err != nil {
				return nil, fmt.Errorf("nusa bench agent %s: %w", c.args, err)
			}
			m.results = append(m.results, r)
		}
		out = append(out, m)
	}
	return out, nil
}

func printAgents(w io.Writer, all []agentMeasured) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n## An agent\n\n`nusa bench agent …`: real processes, each under its supervisor. Running is from\nthe order to the report; idle is with all tasks running; batch are commands that\nend at once, each forgotten when it is reported complete; grown compares the\nagent after a fifth of them with the end.\n\n")
	fmt.Fprint(w, "| arguments | running p50 / p99 ms | idle MB | idle, cores | a supervisor MB (own share) | batch /s | agent CPU ms each | grown: MB, goroutines, files, cgroups, folders, store KiB | goal | reached |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range all {
		for _, r := range m.results {
			idle := " | | "
			if i := r.Idle; i != nil {
				idle = fmt.Sprintf("%s | %.4f | %s (%s)", short(i.RSSMB), i.CPUCores, short(i.SupervisorRSSMB), short(i.SupervisorPSSMB))
			}
			reached := ""
			if m.met != nil {
				reached = "no"
				if m.met(r) {
					reached = "yes"
				}
			}
			a, b := r.Warm, r.Final
			fmt.Fprintf(w, "| %s | %s / %s | %s | %s | %s | %s → %s, %d → %d, %d → %d, %d → %d, %d → %d, %d → %d | %s | %s |\n", m.args, short(r.StartMS.P50), short(r.StartMS.P99),
				idle, number(r.BatchPerS), short(r.AgentCPUMSPerTask), short(a.RSSMB), short(b.RSSMB), a.Goroutines, b.Goroutines, a.Files, b.Files,
				a.Cgroups, b.Cgroups, a.Folders, b.Folders, a.StoreBytes>>10, b.StoreBytes>>10, m.goal, reached)
		}
	}
}
