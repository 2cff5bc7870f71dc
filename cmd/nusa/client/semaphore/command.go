package semaphore

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa semaphore`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("semaphore", "Limit how many steps of workflows run at once",
		listCommand(s), statusCommand(s), setCommand(s), removeCommand(s))
	c.Long = `A semaphore has units that the steps of all workflows of a namespace share. A step
names it in semaphores, starts once there is room, and holds its units until its
job has ended. Those that wait start in the order in which they became ready.`
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

func client(c *cli.Session) nusav1.SemaphoresClient { return nusav1.NewSemaphoresClient(c.Conn) }

// split returns the namespace and the name that an argument means.
func split(c *cli.Session, arg string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(arg, "/"); ok {
		return namespace, name
	}
	return c.Namespace, arg
}

func nameOf(p *nusav1.Semaphore) string { return cli.JobName(p.GetNamespace(), p.GetName(), "") }

func listCommand(s *cli.Settings) *cobra.Command {
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List semaphores with their units", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out := &nusav1.ListSemaphoresResponse{}
			for {
				page, err := client(c).List(ctx, &nusav1.ListSemaphoresRequest{Namespace: c.Namespace, States: states.Words(), PageToken: out.GetNextPageToken()})
				if err != nil {
					return err
				}
				out.Semaphores, out.NextPageToken = append(out.Semaphores, page.GetSemaphores()...), page.GetNextPageToken()
				if out.GetNextPageToken() == "" {
					break
				}
			}
			out.Semaphores = slices.DeleteFunc(out.Semaphores, func(p *nusav1.Semaphore) bool { return !states.Has(filter.Semaphore(p)...) }) // a server of an earlier version does not select
			none := cmp.Or(cli.NoneSuch(c.Program, "semaphores", "semaphore list", states, nil), fmt.Sprintf("no semaphores: %s semaphore set NAME --units N", c.Program))
			return c.Print(out, func(w *term.Screen) { writeList(w, out.GetSemaphores(), none) })
		}),
	}
	states = cli.StateFlag(c, "semaphores", filter.SemaphoreStates...)
	return c
}

func writeList(w *term.Screen, all []*nusav1.Semaphore, none string) {
	if len(all) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	t := term.NewTable("SEMAPHORE", ">UNITS", ">HELD", ">HOLDERS", ">WAITING")
	for _, p := range all {
		t.Row(nameOf(p), term.Count(p.GetUnits()), fmt.Sprint(p.GetHeld()), term.Count(p.GetHolders()), term.Count(p.GetWaiters()))
	}
	t.Write(w)
}

func statusCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "status NAME", Aliases: []string{"show"}, Short: "Show which steps hold a semaphore, and which wait for it", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			namespace, name := split(c, args[0])
			p, err := client(c).Get(ctx, &nusav1.GetSemaphoreRequest{Namespace: namespace, Name: name})
			if err != nil {
				return err
			}
			return c.Print(p, func(w *term.Screen) { writeStatus(w, p) })
		}),
	}
}

func writeStatus(w *term.Screen, p *nusav1.Semaphore) {
	fmt.Fprintf(w, "semaphore %s: %d of %s held\n", nameOf(p), p.GetHeld(), term.Plural(p.GetUnits(), "unit"))
	if p.GetHolders()+p.GetWaiters() == 0 {
		return
	}
	t := term.NewTable("RUN", "STEP", ">UNITS", "STATE", ">SINCE", "MESSAGE")
	rows := func(state string, all []*nusav1.SemaphoreStep) {
		for _, s := range all {
			step := s.GetStep()
			if s.Index != nil {
				step += fmt.Sprintf("[%d]", s.GetIndex())
			}
			t.Row(s.GetRun(), step, term.Count(s.GetUnits()), state, w.Since(s.GetSince()), s.GetMessage())
		}
	}
	rows("holds", p.GetHolding())
	rows("waits", p.GetWaiting())
	t.DropEmpty("MESSAGE")
	t.Write(w)
	if more := int(p.GetHolders()) - len(p.GetHolding()); more > 0 {
		fmt.Fprintf(w, "%d more hold it\n", more)
	}
	if more := int(p.GetWaiters()) - len(p.GetWaiting()); more > 0 {
		fmt.Fprintf(w, "%d more wait for it\n", more)
	}
}

func setCommand(s *cli.Settings) *cobra.Command {
	var units int32
	c := &cobra.Command{
		Use: "set NAME", Short: "Create a semaphore, or change its units", Args: cli.Positional("NAME"),
		Long: `Stores the units of a semaphore. With fewer units than before, steps that hold it go
on, and no further one starts before there is room.`,
		Example: "  nusa semaphore set gpu-license --units 2",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if units < 1 || units > job.MaxSemaphoreUnits {
				return errors.New("give the units: --units, 1 to 1000000")
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			namespace, name := split(c, args[0])
			p, err := client(c).Set(ctx, &nusav1.SetSemaphoreRequest{Namespace: namespace, Name: name, Units: units})
			if err != nil {
				return err
			}
			return c.Print(p, func(w *term.Screen) {
				fmt.Fprintf(w, "semaphore %s has %s\n", nameOf(p), term.Plural(p.GetUnits(), "unit"))
			})
		}),
	}
	c.Flags().Int32Var(&units, "units", 0, "units that steps share, 1 to 1000000")
	return c
}

func removeCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove a semaphore that no step holds or waits for", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			namespace, name := split(c, args[0])
			resp, err := client(c).Remove(ctx, &nusav1.RemoveSemaphoreRequest{Namespace: namespace, Name: name})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "semaphore %s is removed\n", args[0]) })
		}),
	}
}
