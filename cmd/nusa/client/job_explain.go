package client

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func jobExplain(s *settings) *cobra.Command {
	var group string
	c := &cobra.Command{
		Use: "explain JOB", Short: "Say for every region, or node, why instances are or are not there", Args: takes("JOB"),
		Long: `Shows the latest decision about a job: every region, taken or refused, why, the
terms of its score and how old the inputs were. Below that, how what the job
wants to be near to is now: the round trip that counts (the worse of both
directions), how it is known, and whether a bound is kept. A bound that breaks
where instances run is watched: they move only once it was broken for 15 minutes
more than kept, to where it gets at least 10 ms and a third better. Batch jobs,
system jobs and groups that are colocated stay where they are.

With --region that region and every node of it.`,
		Example: "  nusa job explain hello\n  nusa job explain hello --region japaneast",
		RunE: s.run(func(c *caller, args []string) error {
			ref, err := c.ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.call()
			defer cancel()
			e, err := c.jobs().Explain(ctx, &nusav1.ExplainRequest{Job: ref, Region: c.region, Group: group})
			if err != nil {
				return err
			}
			return c.print(e, func(w io.Writer) {
				fmt.Fprintf(w, "%s%s%s\n", c.style.bold(refName(ref)), gap, decided(e))
				if e.GetNote() != "" {
					fmt.Fprintf(w, "%s\n", c.style.wait(plain(e.GetNote())))
				}
				c.view().explanation(w, only(e, c.region))
			})
		}),
	}
	s.bindRegion(c, "explain this region and its nodes")
	c.Flags().StringVar(&group, "group", "", "only this group")
	return c
}

// decided says when the decision was taken. One without an age was made for
// this answer, from the present inputs.
func decided(e *nusav1.Explanation) string {
	switch {
	case len(e.GetGroups()) == 0:
		return "not decided yet"
	case e.GetAge().AsDuration() <= 0:
		return "computed now"
	}
	return "decided " + age(e.GetAge()) + " ago"
}

// only leaves out the other regions, when one was asked about.
func only(e *nusav1.Explanation, region string) *nusav1.Explanation {
	if region == "" {
		return e
	}
	e = proto.CloneOf(e)
	for _, g := range e.GetGroups() {
		g.Regions = slices.DeleteFunc(g.Regions, func(r *nusav1.RegionVerdict) bool { return r.GetRegion() != region })
		g.Near = slices.DeleteFunc(g.Near, func(n *nusav1.NearFare) bool { return n.GetRegion() != region })
	}
	return e
}

func (v view) explanation(w io.Writer, e *nusav1.Explanation) {
	for _, g := range e.GetGroups() {
		placed := g.GetDesired() - g.GetUnplaced()
		fmt.Fprintf(w, "\n%s: %d of %s placed\n", v.bold("group "+g.GetGroup()), placed, plural(g.GetDesired(), "instance"))
		v.waits(w, "  ", g.GetPending())
		v.remedy(w, g)
		var regions []verdict
		for _, r := range g.GetRegions() {
			regions = append(regions, verdict{[]string{r.GetRegion()}, r.GetTaken(), count(r.GetFits()), r.GetReason(), r.GetMessage(), r.GetScore(), r.GetTerms(), r.GetInputs()})
		}
		if len(regions) > 0 {
			v.verdicts(w, []string{"REGION"}, regions)
		}
		v.fares(w, g)
		if len(g.GetNodes()) == 0 {
			continue
		}
		if len(regions) > 0 {
			fmt.Fprintln(w)
		}
		var nodes []verdict
		for _, n := range g.GetNodes() {
			nodes = append(nodes, verdict{[]string{n.GetNodeName(), shortID(n.GetNodeId())}, n.GetTaken(), "", n.GetReason(), n.GetMessage(), n.GetScore(), n.GetTerms(), n.GetInputs()})
		}
		v.verdicts(w, []string{"NODE", "ID"}, nodes)
	}
}

// remedy says what change would make one more instance fit.
func (v view) remedy(w io.Writer, g *nusav1.GroupExplanation) {
	if g.GetRemedy() != "" {
		fmt.Fprintf(w, "  %s\n", plain(g.GetRemedy()))
	}
}

// fares show what each clause of near rests on now, and bounds that are watched.
func (v view) fares(w io.Writer, g *nusav1.GroupExplanation) {
	if len(g.GetNear()) == 0 {
		return
	}
	watched := map[[2]string]*nusav1.NearBound{}
	for _, b := range g.GetBounds() {
		watched[[2]string{b.GetRegion(), b.GetBound()}] = b
	}
	t := newTable("FROM", "WANTED", ">NOW", "TO", "KNOWN", ">AGE", "BOUND")
	for _, f := range g.GetNear() {
		now, old := "-", "-"
		if f.GetRtt() != nil {
			now = millis(f.GetRtt()) + " ms"
		}
		if f.GetAge() != nil {
			old = age(f.GetAge())
		}
		t.row(f.GetRegion(), f.GetBound(), now, orDash(f.GetTarget()), howKnown(f), old, v.fare(f, watched[[2]string{f.GetRegion(), f.GetBound()}]))
	}
	fmt.Fprintln(w)
	t.write(w, v.palette)
}

// howKnown says by what a distance is known: "measured by udp", "predicted ±12%".
func howKnown(f *nusav1.NearFare) string {
	text := word(f.GetSource())
	switch {
	case f.GetState() == nusav1.EdgeState_EDGE_STATE_UNREACHABLE:
		return "unreachable"
	case f.GetSource() == nusav1.RTTSource_RTT_SOURCE_UNSPECIFIED:
		return "nothing"
	case f.GetSource() != nusav1.RTTSource_RTT_SOURCE_MEASURED:
		return fmt.Sprintf("%s ±%s", text, percent(f.GetError()))
	case f.GetMethod() != "":
		text += " by " + f.GetMethod()
	}
	if f.GetState() == nusav1.EdgeState_EDGE_STATE_STALE {
		text += ", stale"
	}
	return text
}

// fare is what a clause makes of its distance, and how long a bound that is
// watched has been broken; b is nil where none is.
func (v view) fare(f *nusav1.NearFare, b *nusav1.NearBound) string {
	text := f.GetVerdict()
	switch text {
	case "kept":
		text = v.good(text)
	case "broken":
		text = v.bad(text)
	case "unknown":
		text = v.wait("not kept: unknown")
	}
	if f.GetMessage() != "" {
		text += ", " + plain(f.GetMessage())
	}
	if b != nil {
		text += fmt.Sprintf("; watched: %s for %s, %s ms at worst; %s", b.GetState(), age(b.GetSince()), millis(b.GetWorst()), plain(b.GetMessage()))
	}
	return text
}

// verdict is of a region or a node alike.
type verdict struct {
	names   []string
	taken   int32
	fits    string
	reason  nusav1.Reason
	message string
	score   float64
	terms   []*nusav1.ScoreTerm
	inputs  []*nusav1.InputAge
}

// verdicts are one line each: a column for each term of the score, in the
// order they first appear.
func (v view) verdicts(w io.Writer, heads []string, all []verdict) {
	var terms []string
	column := map[string]int{}
	for _, r := range all {
		for _, t := range r.terms {
			if _, ok := column[t.GetName()]; !ok {
				column[t.GetName()] = len(terms)
				terms = append(terms, t.GetName())
			}
		}
	}
	heads = append(append([]string{}, heads...), ">TAKEN", ">FITS", ">SCORE")
	for _, t := range terms {
		heads = append(heads, ">"+strings.ToUpper(t))
	}
	t := newTable(append(heads, "WHY", "INPUTS")...)
	for _, r := range all {
		values := make([]string, len(terms))
		for _, term := range r.terms {
			values[column[term.GetName()]] = signed(term.GetValue())
		}
		taken := count(r.taken)
		if r.taken > 0 {
			taken = v.good(taken)
		}
		score := ""
		if len(r.terms) > 0 || r.score != 0 {
			score = number(r.score)
		}
		row := append(append(append([]string{}, r.names...), taken, r.fits, score), values...)
		t.row(append(row, v.because(r), v.faint(inputs(r.inputs)))...)
	}
	t.dropEmpty("FITS", "INPUTS")
	t.write(w, v.palette)
}

// because is the reason of a refusal, or what spoke for it.
func (v view) because(r verdict) string {
	text := why(r.reason, r.message)
	switch r.reason {
	case nusav1.Reason_REASON_LOWER_SCORE:
		return text
	case nusav1.Reason_REASON_UNSPECIFIED:
		var details []string
		for _, t := range r.terms {
			if t.GetDetail() != "" {
				details = append(details, plain(t.GetDetail()))
			}
		}
		if len(details) > 0 {
			return strings.Join(details, "; ")
		}
		return text
	}
	return v.wait(text)
}

func signed(f float64) string {
	if f > 0 {
		return "+" + number(f)
	}
	return number(f)
}

func inputs(all []*nusav1.InputAge) string {
	var parts []string
	for _, i := range all {
		parts = append(parts, i.GetName()+" "+age(i.GetAge()))
	}
	return strings.Join(parts, ", ")
}
