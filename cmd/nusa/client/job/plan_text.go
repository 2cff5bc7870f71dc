package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// planHeader is the context of a plan: the job's name, the arguments of the submit, and the
// fields that the author wrote. submit is empty in a plan of several jobs.
type planHeader struct {
	name, submit string
	written      map[string]bool
	// warnings are the warnings that do not follow from the file alone.
	warnings []string
	// orderNote says why regions wait for each other.
	orderNote string
	// notes are the notes about the spec, which only --verbose shows.
	notes []string
	spec  *nusav1.JobSpec
}

func writePlan(w *term.Screen, of planHeader, p *nusav1.PlanResponse) {
	diff := slices.DeleteFunc(slices.Clone(p.GetDiff()), func(d *nusav1.DiffLine) bool { return d.GetField() == stoppedField })
	starts := ""
	if len(diff) < len(p.GetDiff()) {
		starts = "it is stopped and would start again"
	}
	switch {
	case len(p.GetDiff()) == 0:
		fmt.Fprintf(w, "%s: no change\n", w.Bold(of.name))
	case p.GetRevision() == 0:
		fmt.Fprintf(w, "%s: a new job\n", w.Bold(of.name))
		writeNewJob(w, diff, of.written)
	case len(diff) == 0:
		fmt.Fprintf(w, "%s: %s, unchanged\n", w.Bold(of.name), w.Wait(starts))
	case starts != "":
		fmt.Fprintf(w, "%s: %s, with %s\n", w.Bold(of.name), w.Wait(starts), term.Plural(len(diff), "change"))
		writeDiff(w, diff)
	default:
		fmt.Fprintf(w, "%s: %s\n", w.Bold(of.name), term.Plural(len(diff), "change"))
		writeDiff(w, diff)
	}
	writeChanges(w, p.GetChanges())
	for i, at := range p.GetNextRuns() {
		head := map[bool]string{true: "Runs", false: "then"}[i == 0]
		fmt.Fprintf(w, "%-5s %s\n", head, momentText(at.AsTime(), of.spec.GetSchedule().GetTimeZone()))
	}
	if len(p.GetSlots()) > 0 {
		fmt.Fprintln(w)
		t := term.NewTable("SLOT", ">INSTANCES", "REGION", "#WHY")
		for _, s := range p.GetSlots() {
			because := term.OneLine(s.GetPlacedBecause())
			switch {
			case beingRemoved(s):
				because = w.Wait(slotState(s))
			case waitsForRegion(s):
				because = w.Wait(term.OneLine(s.GetMessage()))
			}
			instances := term.Count(s.GetTo() - s.GetFrom())
			system := everyNode(of.spec, s.GetGroup())
			if system {
				instances = ""
			}
			t.Row(slotName(s, system), instances, s.GetRegion(), because)
		}
		t.DropBlank("INSTANCES")
		t.Write(w)
		if of.orderNote != "" {
			fmt.Fprintln(w, of.orderNote)
		}
	}
	for _, g := range p.GetExplanation().GetGroups() {
		if rule := divideText(g); rule != "" {
			fmt.Fprintf(w, "divide of %s: %s\n", g.GetGroup(), rule)
		}
	}
	for _, g := range slices.Sorted(maps.Keys(p.GetUnplaced())) {
		if n := p.GetUnplaced()[g]; n > 0 {
			fmt.Fprintf(w, "%s\n", w.Wait(fmt.Sprintf("%s of %s would stay pending%s", term.Plural(n, "instance"), g, refusals(p.GetExplanation(), g))))
			writeCounted(w, "  ", groupOf(p.GetExplanation(), g).GetPending())
			writeRemedy(w, groupOf(p.GetExplanation(), g))
		}
	}
	writeRemarks(w, of, p)
	if len(p.GetDiff()) > 0 && of.submit != "" {
		check := fmt.Sprint(p.GetRevision())
		if p.GetRevision() == 0 {
			check = "-1"
		}
		fmt.Fprintf(w, "\nto make exactly these changes: %s job run --check-revision %s%s\n", w.Program, check, of.submit)
	}
}

// writeChanges says which instances change in place and which are replaced.
func writeChanges(w *term.Screen, changes []*nusav1.GroupChange) {
	for _, c := range changes {
		of := c.GetGroup()
		if c.GetInstances() != "" {
			of += "[" + c.GetInstances() + "]"
		}
		how, text := "replaced", w.Wait
		if c.GetInPlace() {
			how, text = "in place", w.Good
		}
		line := fmt.Sprintf("%s: %s", of, text(how))
		if c.GetMessage() != "" {
			line += ", " + map[bool]string{true: "", false: "because "}[c.GetInPlace()] + term.OneLine(c.GetMessage())
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

// writeRemarks writes the notes and the warnings below a plan.
func writeRemarks(w *term.Screen, of planHeader, p *nusav1.PlanResponse) {
	for _, note := range of.notes {
		fmt.Fprintf(w, "%s%s\n", w.Faint("note: "), note)
	}
	warnings := p.GetWarnings()
	if len(p.GetDiff()) == 0 {
		warnings = of.warnings // the submit of this version has already shown the other warnings
	}
	for _, warning := range warnings {
		fmt.Fprintf(w, "%s%s\n", w.Wait("warning: "), cli.WithProgram(term.OneLine(warning), w.Program))
	}
}

// writeNewJob writes every field that the author wrote, and the number of defaults.
func writeNewJob(w *term.Screen, diff []*nusav1.DiffLine, written map[string]bool) {
	own := slices.DeleteFunc(slices.Clone(diff), func(d *nusav1.DiffLine) bool { return !written[d.GetField()] })
	writeDiff(w, own)
	if folded := len(diff) - len(own); folded > 0 {
		fmt.Fprintf(w, "  %s\n", w.Faint(fmt.Sprintf("and %s; %s job validate --full shows them", term.Plural(folded, "default"), w.Program)))
	}
}

func writeDiff(w *term.Screen, lines []*nusav1.DiffLine) {
	for _, d := range lines {
		old, next := term.Clip(w, d.GetOld()), term.Clip(w, d.GetNew())
		switch {
		case d.GetOld() == "":
			fmt.Fprintf(w, "  %s\n", w.Good(fmt.Sprintf("+ %s: %s", d.GetField(), next)))
		case d.GetNew() == "":
			fmt.Fprintf(w, "  %s\n", w.Bad(fmt.Sprintf("- %s: %s", d.GetField(), old)))
		default:
			fmt.Fprintf(w, "  %s\n", w.Wait(fmt.Sprintf("~ %s: %s -> %s", d.GetField(), old, next)))
		}
	}
}

// groupOf returns the explanation of a group, or nil if there is none.
func groupOf(e *nusav1.Explanation, group string) *nusav1.GroupExplanation {
	i := slices.IndexFunc(e.GetGroups(), func(g *nusav1.GroupExplanation) bool { return g.GetGroup() == group })
	if i < 0 {
		return nil
	}
	return e.GetGroups()[i]
}

// refusals counts the reasons for which regions refuse a group, for example ": 3 regions:
// no node fits".
func refusals(e *nusav1.Explanation, group string) string {
	g := groupOf(e, group)
	if len(g.GetPending()) > 0 {
		return ":" // each reason is on a line of its own
	}
	counts := map[nusav1.Reason]int{}
	for _, r := range g.GetRegions() {
		if r.GetReason() != nusav1.Reason_REASON_UNSPECIFIED {
			counts[r.GetReason()]++
		}
	}
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s: %s", term.Plural(counts[r], "region"), reason.Text(r)))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, "; ")
}
