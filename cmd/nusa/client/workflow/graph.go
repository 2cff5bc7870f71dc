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
			return c.Print(g, func(w *term.Screen) { draw(w, g) })
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
	fmt.Fprintf(w, "%s %s\n", runName(g.GetRun()), w.State(term.Word(g.GetRun().GetState())))
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
