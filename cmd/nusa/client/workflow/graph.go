package workflow

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func graphCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "graph RUN", Short: "Draw which steps of a run depend on which others", Args: cli.Positional("RUN"),
		Long: "Draws the steps of a run. A step stands below the last of those on which it depends; the\nothers are named beside it.",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			g, err := client(c).Graph(ctx, &nusav1.GetWorkflowGraphRequest{Run: ref})
			if err != nil {
				return err
			}
			all := []*nusav1.WorkflowGraph{g}
			for n := 0; c.Output == "table" && n < len(all); n++ {
				for _, st := range all[n].GetSteps() {
					if st.GetRun() == "" || len(all) > mostInside {
						continue
					}
					in, err := client(c).Graph(ctx, &nusav1.GetWorkflowGraphRequest{Run: &nusav1.JobRef{Namespace: ref.GetNamespace(), Name: st.GetRun()}})
					if err != nil {
						return err
					}
					all = append(all, in)
				}
			}
			return c.Print(g, func(w *term.Screen) {
				for i, g := range all {
					if i > 0 {
						fmt.Fprintln(w)
					}
					draw(w, g)
				}
			})
		}),
	}
}

// draw writes a graph as a tree.
func draw(w *term.Screen, g *nusav1.WorkflowGraph) {
	index := map[string]int{}
	for i, s := range g.GetSteps() {
		index[s.GetName()] = i
	}
	const root = -1
	below := map[int][]int{}
	for i, s := range g.GetSteps() {
		parent := root
		for _, name := range s.GetAfter() {
			parent = max(parent, index[name])
		}
		below[parent] = append(below[parent], i)
	}
	of := ""
	if g.GetRun().GetParent() != "" {
		of = fmt.Sprintf(" (step %s of %s)", g.GetRun().GetParentStep(), g.GetRun().GetParent())
	}
	fmt.Fprintf(w, "%s %s%s\n", runName(g.GetRun()), w.State(term.Word(g.GetRun().GetState())), of)
	type line struct {
		step int
		lead string // the lines that lead to the steps before it
		last bool
	}
	var stack []line
	push := func(parent int, lead string) {
		steps := below[parent]
		for n, i := range slices.Backward(steps) {
			stack = append(stack, line{i, lead, n == len(steps)-1})
		}
	}
	push(root, "")
	for len(stack) > 0 {
		l := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		branch, lead := "├─ ", "│  "
		if l.last {
			branch, lead = "└─ ", "   "
		}
		s := g.GetSteps()[l.step]
		fmt.Fprintf(w, "%s%s%s %s%s\n", l.lead, branch, s.GetName(), w.State(term.Word(s.GetState())), aside(index, s))
		push(l.step, l.lead+lead)
	}
}

// aside says what the tree does not show of a step.
func aside(index map[string]int, s *nusav1.GraphStep) string {
	out := ""
	if s.GetItems() > 0 {
		out += fmt.Sprintf(" %d/%d", s.GetItemsEnded(), s.GetItems())
	}
	switch {
	case s.GetRun() != "":
		out += " (run " + s.GetRun() + ")"
	case s.GetWorkflow() != "":
		out += " (workflow " + s.GetWorkflow() + ")"
	}
	if s.GetOnExit() {
		out += " (at the end)"
	}
	if after := s.GetAfter(); len(after) > 1 {
		last := slices.MaxFunc(after, func(x, y string) int { return index[x] - index[y] })
		others := slices.DeleteFunc(slices.Clone(after), func(name string) bool { return name == last })
		text := strings.Join(others[:min(len(others), 4)], ", ")
		if len(others) > 4 {
			text += fmt.Sprintf(" and %d more", len(others)-4)
		}
		out += " (and after " + text + ")"
	}
	return out
}
