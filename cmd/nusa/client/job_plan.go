package client

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxNewLines is how much of a new job's file is repeated in its plan.
const maxNewLines = 12

func jobPlan(s *settings) *cobra.Command {
	var region string
	var explain bool
	c := &cobra.Command{
		Use: "plan FILE", Short: "Show what a submit would change, and where instances would go", Args: cobra.ExactArgs(1),
		Long:        "A dry run: what job run would change and where instances would go. Nothing is stored.\n\nExit codes: 0 no change, 1 changes, 255 error.",
		Annotations: map[string]string{errorCodeKey: fmt.Sprint(planError)},
		RunE: s.run(func(c *caller, args []string) error {
			spec, err := readJob(c.cmd, args[0], c.namespace)
			if err != nil {
				return err
			}
			if region != "" {
				done, err := c.redial(region)
				if err != nil {
					return err
				}
				defer done()
			}
			ctx, cancel := c.call()
			defer cancel()
			plan, err := c.jobs().Plan(ctx, &nusav1.PlanRequest{Spec: spec})
			if err != nil {
				return err
			}
			err = c.print(plan, func(w io.Writer) {
				c.view().plan(w, jobName(namespaceOf(spec), spec.GetName(), region), args[0], plan)
				if explain {
					c.view().explanation(w, plan.GetExplanation())
				}
			})
			if err != nil {
				return err
			}
			if len(plan.GetDiff()) > 0 {
				return &exitError{code: planChanges}
			}
			return nil
		}),
	}
	c.Flags().StringVar(&region, "region", "", "plan on this region's own servers, as a job NAME@REGION")
	c.Flags().BoolVar(&explain, "explain", false, "also show every region's score")
	return c
}

func (v view) plan(w io.Writer, name, file string, p *nusav1.PlanResponse) {
	switch {
	case len(p.GetDiff()) == 0:
		fmt.Fprintf(w, "%s: no change\n", v.bold(name))
	case p.GetRevision() == 0:
		fmt.Fprintf(w, "%s: a new job\n", v.bold(name))
		v.diff(w, p.GetDiff(), maxNewLines)
	default:
		fmt.Fprintf(w, "%s: %s\n", v.bold(name), plural(len(p.GetDiff()), "change"))
		v.diff(w, p.GetDiff(), len(p.GetDiff()))
	}
	if len(p.GetSlots()) > 0 {
		fmt.Fprintln(w)
		t := newTable("SLOT", ">INSTANCES", "REGION", "WHY")
		for _, s := range p.GetSlots() {
			t.row(slotName(s), count(s.GetTo()-s.GetFrom()), s.GetRegion(), oneLine(s.GetPlacedBecause()))
		}
		t.write(w, v.palette)
	}
	for _, g := range slices.Sorted(maps.Keys(p.GetUnplaced())) {
		if n := p.GetUnplaced()[g]; n > 0 {
			fmt.Fprintf(w, "%s\n", v.wait(fmt.Sprintf("%s of %s would stay pending%s", plural(n, "instance"), g, refusals(p.GetExplanation(), g))))
		}
	}
	for _, warning := range p.GetWarnings() {
		fmt.Fprintf(w, "%s%s\n", v.wait("warning: "), oneLine(warning))
	}
	if len(p.GetDiff()) > 0 {
		check := fmt.Sprint(p.GetRevision())
		if p.GetRevision() == 0 {
			check = "-1"
		}
		fmt.Fprintf(w, "\nto do just this: nusa job run --check-revision %s %s\n", check, file)
	}
}

// diff shows at most most lines.
func (v view) diff(w io.Writer, lines []*nusav1.DiffLine, most int) {
	for i, d := range lines {
		if i == most {
			fmt.Fprintf(w, "  %s\n", v.faint(fmt.Sprintf("and %d more fields", len(lines)-i)))
			return
		}
		old, next := clip(d.GetOld()), clip(d.GetNew())
		switch {
		case d.GetOld() == "":
			fmt.Fprintf(w, "  %s\n", v.good(fmt.Sprintf("+ %s: %s", d.GetField(), next)))
		case d.GetNew() == "":
			fmt.Fprintf(w, "  %s\n", v.bad(fmt.Sprintf("- %s: %s", d.GetField(), old)))
		default:
			fmt.Fprintf(w, "  %s\n", v.wait(fmt.Sprintf("~ %s: %s -> %s", d.GetField(), old, next)))
		}
	}
}

func clip(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", "⏎")
	const most = 80
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// refusals counts why regions refuse a group: ": rtt too high in 3 regions".
func refusals(e *nusav1.Explanation, group string) string {
	counts := map[nusav1.Reason]int{}
	for _, g := range e.GetGroups() {
		if g.GetGroup() != group {
			continue
		}
		for _, r := range g.GetRegions() {
			if r.GetReason() != nusav1.Reason_REASON_UNSPECIFIED {
				counts[r.GetReason()]++
			}
		}
	}
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s in %s", word(r), plural(counts[r], "region")))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}
