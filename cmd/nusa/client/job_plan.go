package client

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func jobPlan(s *settings) *cobra.Command {
	var region string
	var explain bool
	c := &cobra.Command{
		Use: "plan FILE", Short: "Show what a submit would change, and where instances would go", Args: takes("FILE"),
		Long:        "A dry run: what job run would change and where instances would go. Nothing is stored.\n\nExit codes: 0 no change, 1 changes, 255 error.",
		Annotations: map[string]string{errorCodeKey: fmt.Sprint(planError)},
		RunE: s.run(func(c *caller, args []string) error {
			file, err := readJob(c.cmd, args[0], c.namespace)
			if err != nil {
				return err
			}
			spec := file.JobSpec
			if region != "" {
				done, err := c.redial(region)
				if err != nil {
					return err
				}
				defer done()
			}
			written := map[string]bool{}
			for _, d := range job.Diff(nil, spec) {
				written[d.GetField()] = true
			}
			ctx, cancel := c.call()
			defer cancel()
			plan, err := c.jobs().Plan(ctx, &nusav1.PlanRequest{Spec: spec})
			if err != nil {
				return file.locate(err)
			}
			if err := c.planStart(ctx, spec, region, plan); err != nil {
				return err
			}
			at := region
			if at == "" {
				at = c.regionOf(ctx)
			}
			err = c.print(plan, func(w io.Writer) {
				c.view().plan(w, planned{jobName(namespaceOf(spec), spec.GetName(), at), c.submitFlags(region) + " " + fileArg(args[0]), written, news(plan.GetWarnings(), spec), inTurn(plan, spec)}, plan)
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

// planned is what a plan is of: the job's name, how to submit it, and the
// fields that its author wrote.
type planned struct {
	name, submit string
	written      map[string]bool
	// news are the warnings that are not about the file alone.
	news []string
	// inTurn is why regions wait for one another.
	inTurn string
}

// stoppedField is the line of a diff that says that the stored job is stopped.
const stoppedField = "stopped"

// planStart adds to a region's plan what the global tier's says by itself: that
// the stored job is stopped, so that a submit of the same starts it again.
func (c *caller) planStart(ctx context.Context, spec *nusav1.JobSpec, region string, plan *nusav1.PlanResponse) error {
	isLine := func(d *nusav1.DiffLine) bool { return d.GetField() == stoppedField }
	if region == "" || plan.GetRevision() == 0 || slices.ContainsFunc(plan.GetDiff(), isLine) {
		return nil
	}
	j, err := c.jobs().Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: namespaceOf(spec), Name: spec.GetName(), Region: region}})
	if err != nil {
		return err
	}
	if j.GetStopped() {
		plan.Diff = append(plan.Diff, &nusav1.DiffLine{Field: stoppedField, Old: "true"})
	}
	return nil
}

func (v view) plan(w io.Writer, of planned, p *nusav1.PlanResponse) {
	diff := slices.DeleteFunc(slices.Clone(p.GetDiff()), func(d *nusav1.DiffLine) bool { return d.GetField() == stoppedField })
	starts := ""
	if len(diff) < len(p.GetDiff()) {
		starts = "it is stopped and would start again"
	}
	switch {
	case len(p.GetDiff()) == 0:
		fmt.Fprintf(w, "%s: no change\n", v.bold(of.name))
	case p.GetRevision() == 0:
		fmt.Fprintf(w, "%s: a new job\n", v.bold(of.name))
		v.newJob(w, diff, of.written)
	case len(diff) == 0:
		fmt.Fprintf(w, "%s: %s, unchanged\n", v.bold(of.name), v.wait(starts))
	case starts != "":
		fmt.Fprintf(w, "%s: %s, with %s\n", v.bold(of.name), v.wait(starts), plural(len(diff), "change"))
		v.diff(w, diff)
	default:
		fmt.Fprintf(w, "%s: %s\n", v.bold(of.name), plural(len(diff), "change"))
		v.diff(w, diff)
	}
	if len(p.GetSlots()) > 0 {
		fmt.Fprintln(w)
		t := newTable("SLOT", ">INSTANCES", "REGION", "WHY")
		for _, s := range p.GetSlots() {
			because := plain(s.GetPlacedBecause())
			switch {
			case unwanted(s):
				because = v.wait(slotState(s))
			case waitsTurn(s):
				because = v.wait(plain(s.GetMessage()))
			}
			t.row(slotName(s), count(s.GetTo()-s.GetFrom()), s.GetRegion(), because)
		}
		t.write(w, v.palette)
		if of.inTurn != "" {
			fmt.Fprintln(w, of.inTurn)
		}
	}
	for _, g := range slices.Sorted(maps.Keys(p.GetUnplaced())) {
		if n := p.GetUnplaced()[g]; n > 0 {
			fmt.Fprintf(w, "%s\n", v.wait(fmt.Sprintf("%s of %s would stay pending%s", plural(n, "instance"), g, refusals(p.GetExplanation(), g))))
			v.waits(w, "  ", groupOf(p.GetExplanation(), g).GetPending())
			v.remedy(w, groupOf(p.GetExplanation(), g))
		}
	}
	warnings := p.GetWarnings()
	if len(p.GetDiff()) == 0 {
		warnings = of.news // the rest was said when it was submitted
	}
	for _, warning := range warnings {
		fmt.Fprintf(w, "%s%s\n", v.wait("warning: "), called(plain(warning), v.nusa))
	}
	if len(p.GetDiff()) > 0 {
		check := fmt.Sprint(p.GetRevision())
		if p.GetRevision() == 0 {
			check = "-1"
		}
		fmt.Fprintf(w, "\nto do just this: %s job run --check-revision %s%s\n", v.nusa, check, of.submit)
	}
}

// submitFlags are the flags of a plan that the submit needs as well.
func (c *caller) submitFlags(region string) string {
	flags := c.namespaceFlag()
	if region != "" {
		flags += " --region " + region
	}
	return flags
}

// newJob shows every field that the author wrote; defaults are counted.
func (v view) newJob(w io.Writer, diff []*nusav1.DiffLine, written map[string]bool) {
	own := slices.DeleteFunc(slices.Clone(diff), func(d *nusav1.DiffLine) bool { return !written[d.GetField()] })
	v.diff(w, own)
	if folded := len(diff) - len(own); folded > 0 {
		fmt.Fprintf(w, "  %s\n", v.faint(fmt.Sprintf("and %s; %s job validate --full shows them", plural(folded, "default"), v.nusa)))
	}
}

func (v view) diff(w io.Writer, lines []*nusav1.DiffLine) {
	for _, d := range lines {
		old, next := v.clip(d.GetOld()), v.clip(d.GetNew())
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

// clip makes one line of a value, a short one on a terminal.
func (v view) clip(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", "⏎")
	if r := []rune(s); v.width > 0 && len(r) > clipped {
		return string(r[:clipped]) + "…"
	}
	return s
}

// clipped is of how many characters a long text is shown in one cell.
const clipped = 80

// shorten leaves out the middle of a text: what is wrong begins it, and the
// cause ends it.
func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	head := most / 3
	return string(r[:head]) + "…" + string(r[len(r)-(most-head-1):])
}

// groupOf is what is explained of a group; nil if nothing is.
func groupOf(e *nusav1.Explanation, group string) *nusav1.GroupExplanation {
	i := slices.IndexFunc(e.GetGroups(), func(g *nusav1.GroupExplanation) bool { return g.GetGroup() == group })
	if i < 0 {
		return nil
	}
	return e.GetGroups()[i]
}

// refusals counts why regions refuse a group: ": 3 regions: no node fits".
func refusals(e *nusav1.Explanation, group string) string {
	g := groupOf(e, group)
	if len(g.GetPending()) > 0 {
		return ":" // each on a line of its own
	}
	counts := map[nusav1.Reason]int{}
	for _, r := range g.GetRegions() {
		if r.GetReason() != nusav1.Reason_REASON_UNSPECIFIED {
			counts[r.GetReason()]++
		}
	}
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s: %s", plural(counts[r], "region"), reason.Text(r)))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, "; ")
}
