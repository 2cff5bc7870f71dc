package job

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func explainCommand(s *cli.Settings) *cobra.Command {
	var group string
	c := &cobra.Command{
		Use: "explain JOB", Short: "Explain why each region, or node, has instances or not", Args: cli.Positional("JOB"),
		Long: `Shows the latest decision about a job: whether each region was chosen, why, the
terms of its score, and the age of the inputs. Below that are the present round
trips of the job's near clauses (the worse of both directions), how each is known,
and whether the bound is met.

A bound that breaks for running instances is watched. The instances move when the
bound was broken for 15 minutes longer than it was met. They move to a region that is
better by at least 10 ms and by a third. Batch jobs, system jobs and colocated groups
do not move.

--region explains that region and each of its nodes.`,
		Example: "  nusa job explain hello\n  nusa job explain hello --region japaneast",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			e, err := c.Jobs().Explain(ctx, &nusav1.ExplainRequest{Job: ref, Region: c.Region, Group: group})
			if err != nil {
				return err
			}
			return c.Print(e, func(w *term.Screen) {
				fmt.Fprintf(w, "%s%s%s\n", c.Style.Bold(cli.RefName(ref)), term.Gap, decidedText(e))
				if e.GetNote() != "" {
					fmt.Fprintf(w, "%s\n", c.Style.Wait(term.OneLine(e.GetNote())))
				}
				writeExplanation(w, onlyRegion(e, c.Region))
			})
		}),
	}
	s.BindRegion(c, "explain this region and its nodes")
	c.Flags().StringVar(&group, "group", "", "only this group")
	return c
}

// decidedText says when the decision was made. An explanation without an age was computed
// for this request.
func decidedText(e *nusav1.Explanation) string {
	switch {
	case len(e.GetGroups()) == 0 && e.GetNote() != "":
		return "no decision is stored"
	case len(e.GetGroups()) == 0:
		return "not decided yet"
	case e.GetAge().AsDuration() <= 0:
		return "computed now"
	}
	return "decided " + term.Age(e.GetAge()) + " ago"
}

// onlyRegion returns the explanation without the other regions, if the command names a
// region.
func onlyRegion(e *nusav1.Explanation, region string) *nusav1.Explanation {
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

func writeExplanation(w *term.Screen, e *nusav1.Explanation) {
	for _, g := range e.GetGroups() {
		placed := g.GetDesired() - g.GetUnplaced()
		fmt.Fprintf(w, "\n%s: %d of %s placed\n", w.Bold("group "+g.GetGroup()), placed, term.Plural(g.GetDesired(), "instance"))
		writeCounted(w, "  ", g.GetPending())
		if text := beforeText(cmp.Or(g.GetQueue(), g.GetGlobalQueue())); text != "" {
			w.Note("  ", "queue: "+text)
		}
		writeRemedy(w, g)
		if rule := divideText(g); rule != "" {
			w.Note("  ", "divide: "+rule)
		}
		var regions []verdict
		for _, r := range g.GetRegions() {
			v := verdict{[]string{r.GetRegion()}, r.GetTaken(), term.Count(r.GetFits()), r.GetReason(), r.GetMessage(), r.GetScore(), r.GetTerms(), r.GetInputs()}
			if r.GetReason() == nusav1.Reason_REASON_REGION_DISCONNECTED { // the last report of a cut-off region does not describe the present
				v.fits, v.score, v.terms, v.inputs = "", 0, nil, nil
			}
			regions = append(regions, v)
		}
		if len(regions) > 0 {
			sayWhy(regions)
			writeVerdicts(w, []string{"REGION"}, regions)
		}
		writeNear(w, g)
		if len(g.GetNodes()) == 0 {
			continue
		}
		if len(regions) > 0 {
			fmt.Fprintln(w)
		}
		var nodes []verdict
		for _, n := range g.GetNodes() {
			nodes = append(nodes, verdict{[]string{n.GetNodeName(), term.ShortID(n.GetNodeId())}, n.GetTaken(), "", n.GetReason(), n.GetMessage(), n.GetScore(), n.GetTerms(), n.GetInputs()})
		}
		sayWhy(nodes)
		writeVerdicts(w, []string{"NODE", "ID"}, nodes)
	}
}

// sayWhy sets the message of each node or region that nothing refuses and whose score has no
// details.
func sayWhy(nodes []verdict) {
	least, taken := math.Inf(1), false // the lowest score of one with instances
	for _, n := range nodes {
		if n.taken > 0 {
			least, taken = min(least, n.score), true
		}
	}
	for i := range nodes {
		n := &nodes[i]
		detailed := slices.ContainsFunc(n.terms, func(t *nusav1.ScoreTerm) bool { return t.GetDetail() != "" })
		switch {
		case n.reason != nusav1.Reason_REASON_UNSPECIFIED || n.message != "" || detailed:
		case n.taken > 0:
			n.message = "has " + term.Plural(n.taken, "instance")
		case !taken:
			n.message = "fits"
		case n.score < least:
			n.message = "fits, but the others have a better score"
		default:
			n.message = "fits as well as the others"
		}
	}
}

// writeRemedy writes which change would let one more instance fit.
func writeRemedy(w *term.Screen, g *nusav1.GroupExplanation) {
	if g.GetRemedy() != "" {
		w.Note("  ", term.OneLine(g.GetRemedy()))
	}
}

// divideText says how several instances are divided among regions, for example "best, the
// default of a batch job".
func divideText(g *nusav1.GroupExplanation) string {
	if g.GetDivide() == nusav1.Divide_DIVIDE_UNSPECIFIED || g.GetDesired() < 2 {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(g.GetDivide().String(), "DIVIDE_")) + ", " + term.OneLine(g.GetDivideWhy())
}

// verdict says why a region or a node was chosen or refused. names are the values of the
// first columns.
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

// writeVerdicts writes one line for each verdict. Each term of the score has a column, in
// the order of first appearance.
func writeVerdicts(w *term.Screen, heads []string, all []verdict) {
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
	t := term.NewTable(append(heads, "#WHY", "INPUTS")...)
	for _, r := range all {
		values := make([]string, len(terms))
		for _, term := range r.terms {
			values[column[term.GetName()]] = signed(term.GetValue())
		}
		taken := term.Count(r.taken)
		if r.taken > 0 {
			taken = w.Good(taken)
		}
		score := ""
		if len(r.terms) > 0 || r.score != 0 {
			score = term.Number(r.score)
		}
		row := append(append(append([]string{}, r.names...), taken, r.fits, score), values...)
		t.Row(append(row, verdictText(w, r), w.Faint(inputs(r.inputs)))...)
	}
	t.DropEmpty("FITS", "INPUTS")
	narrow := []string{"INPUTS"}
	for _, name := range terms {
		narrow = append(narrow, strings.ToUpper(name))
	}
	t.Narrow(w.Width, narrow...)
	t.Write(w)
}

// verdictText returns the reason of a refusal, or else the details of the score.
func verdictText(w *term.Screen, r verdict) string {
	text := term.Why(r.reason, r.message)
	if r.reason == nusav1.Reason_REASON_NO_CAPACITY && reason.Begins(r.message) {
		text = term.OneLine(r.message) // for example, a missing driver is not a lack of room
	}
	switch r.reason {
	case nusav1.Reason_REASON_LOWER_SCORE:
		return text
	case nusav1.Reason_REASON_UNSPECIFIED:
		var details []string
		for _, t := range r.terms {
			if t.GetDetail() != "" {
				details = append(details, term.OneLine(t.GetDetail()))
			}
		}
		if len(details) > 0 {
			return strings.Join(details, "; ")
		}
		return text
	}
	return w.Wait(text)
}

func signed(f float64) string {
	if f > 0 {
		return "+" + term.Number(f)
	}
	return term.Number(f)
}

func inputs(all []*nusav1.InputAge) string {
	var parts []string
	for _, i := range all {
		parts = append(parts, i.GetName()+" "+term.Age(i.GetAge()))
	}
	return strings.Join(parts, ", ")
}
