package region

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func failbackCommand(s *cli.Settings) *cobra.Command {
	var apply bool
	c := &cobra.Command{
		Use: "failback REGION", Short: "Show which work can return to a region that was lost; --apply lets it return", Args: cli.Positional("REGION"),
		Long: `Shows the work that a loss moved away from the region, and whether it can return. With
--apply it returns, at most update.max_parallel instances of a group at a time: the
present region gives an instance up, and only then the region starts it. Groups with
disconnect.region.failback.mode auto return automatically. Groups with mode never do not
return.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Regions().Failback(ctx, &nusav1.FailbackRequest{Name: args[0], Apply: apply})
			if err != nil {
				return err
			}
			applied := apply
			if !applied && len(resp.GetMoves()) > 0 {
				r, err := c.Regions().Get(ctx, &nusav1.GetRegionRequest{Name: args[0]})
				applied = err == nil && r.GetReturning() // without it, only the last line differs
			}
			return c.Print(resp, func(w *term.Screen) { writeFailback(w, args[0], resp, applied) })
		}),
	}
	c.Flags().BoolVar(&apply, "apply", false, "let the work return")
	return c
}

// writeFailback writes the plan of a failback. applied: an operator lets the work return, with this
// call or an earlier one.
func writeFailback(w *term.Screen, name string, resp *nusav1.FailbackResponse, applied bool) {
	if len(resp.GetMoves()) == 0 {
		fmt.Fprintf(w, "nothing to return to %s\n", name)
		return
	}
	t := term.NewTable("JOB", "SLOT", "NOW AT", "RETURNS", "#WHY")
	returns := int32(0)
	for _, m := range resp.GetMoves() {
		answer := w.Wait("no")
		if m.GetReturns() {
			answer, returns = "yes", returns+m.GetTo()-m.GetFrom()
		}
		t.Row(m.GetNamespace()+"/"+m.GetJob(), slot(m), m.GetOwner(), answer, cli.WithProgram(term.OneLine(m.GetMessage()), w.Program))
	}
	t.DropEmpty("WHY")
	t.Write(w)
	if more := resp.GetMore(); more > 0 {
		fmt.Fprintf(w, "and %s\n", term.Plural(more, "more slot"))
	}
	switch {
	case returns == 0:
		fmt.Fprintf(w, "nothing can return to region %s now\n", name)
	case applied:
		fmt.Fprintf(w, "%s to region %s; %s region status %s shows when that has ended\n", returning(returns), name, w.Program, name)
	default:
		fmt.Fprintf(w, "%s region failback %s --apply lets %s return\n", w.Program, name, term.Plural(returns, "instance"))
	}
}

func returning(n int32) string {
	if n == 1 {
		return "1 instance returns"
	}
	return fmt.Sprintf("%d instances return", n)
}

// slot returns the slot of a move, for example "web[0-3]", or "web[3]" for one instance.
func slot(m *nusav1.FailbackMove) string {
	if m.GetTo()-m.GetFrom() == 1 {
		return fmt.Sprintf("%s[%d]", m.GetGroup(), m.GetFrom())
	}
	return fmt.Sprintf("%s[%d-%d]", m.GetGroup(), m.GetFrom(), m.GetTo()-1)
}
