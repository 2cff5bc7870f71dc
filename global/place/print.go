package place

import (
	"fmt"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// String prints the plan: the actions, then each group with its regions.
func (p Plan) String() string {
	var b strings.Builder
	if len(p.Actions) == 0 {
		b.WriteString("nothing to do\n")
	}
	for _, a := range p.Actions {
		fmt.Fprintln(&b, a)
	}
	for _, s := range p.RolloutStages {
		fmt.Fprintln(&b, s)
	}
	for _, m := range p.Moves {
		fmt.Fprintln(&b, m)
	}
	for _, g := range p.Groups {
		b.WriteString(g.String())
	}
	return b.String()
}

// String prints "offer default/api/web[0-5] v1 to sea: score 61.3 (…), fits 8".
func (a Action) String() string {
	slot := fmt.Sprintf("%s/%s/%s%s", a.Namespace, a.Job, a.Group, region.FormatRange(a.From, a.To))
	if a.Kind == Offer {
		return fmt.Sprintf("%s %s v%d to %s: %s", a.Kind, slot, a.JobVersion, a.Region, a.Why)
	}
	why := a.Why
	if a.Reason != "" {
		why = a.Reason + ": " + why
	}
	return fmt.Sprintf("%s %s at %s: %s", a.Kind, slot, a.Region, why)
}

// String prints one line for the group, then one line for each region.
func (g GroupExplanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s/%s: %d desired, %d unplaced\n", g.Namespace, g.Job, g.Group, g.Desired, g.Unplaced)
	for _, c := range g.Pending {
		fmt.Fprintf(&b, "  pending: %s %d %s", c.Reason, c.Count, c.What)
		if c.Message != "" {
			fmt.Fprintf(&b, " (%s)", c.Message)
		}
		b.WriteByte('\n')
	}
	for _, r := range g.Regions {
		fmt.Fprintln(&b, "  "+r.String())
	}
	return b.String()
}

// String prints the verdict in one line.
func (v RegionVerdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%d", v.Region, v.Taken, v.Fits)
	if v.Reason != "" {
		fmt.Fprintf(&b, " %s:", v.Reason)
	}
	fmt.Fprintf(&b, " %s", v.Message)
	for i, t := range v.Terms {
		sep := " +"
		if i == 0 {
			sep = fmt.Sprintf("; %.1f =", v.Score)
		}
		fmt.Fprintf(&b, "%s %s %.1f (%s)", sep, t.Name, t.Value, t.Detail)
	}
	for i, in := range v.Inputs {
		sep := ","
		if i == 0 {
			sep = "; ages:"
		}
		fmt.Fprintf(&b, "%s %s %s", sep, in.Name, in.Age.Round(100*time.Millisecond))
	}
	return b.String()
}
