package alloc

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func restartCommand(s *cli.Settings) *cobra.Command {
	var task string
	c := &cobra.Command{
		Use: "restart ID|JOB", Short: "Restart the tasks of one allocation where they are", Args: cli.Positional("ID|JOB"),
		Long: `Stops the running tasks of one allocation and starts them again on the same node, in
the same folders. The restart does not count against the restart policy. (alloc stop moves an
instance to another allocation.)

` + instanceHelp,
		Example: "  nusa alloc restart 1f3a\n  nusa alloc restart hello/greeter/0 --task greet",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			a, err := findAlloc(ctx, c, args[0])
			if err != nil {
				return err
			}
			r, err := c.Allocs().Restart(ctx, &nusav1.RestartAllocationRequest{Allocation: a.GetId(), Task: task})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) {
				fmt.Fprintf(w, "%s (%s) restarts %s\n", term.ShortID(a.GetId()), instance(a), tasksText(r.GetTasks()))
			})
		}),
	}
	c.Flags().StringVar(&task, "task", "", "name of the task; default: all running tasks")
	return c
}

func signalCommand(s *cli.Settings) *cobra.Command {
	var task string
	c := &cobra.Command{
		Use: "signal ID|JOB SIGNAL", Short: "Send a signal to the tasks of one allocation", Args: cli.Positional("ID|JOB", "SIGNAL"),
		Long: `Sends a signal, such as SIGHUP or USR1, to the first process of the running tasks of
one allocation. A task that ends because of it has failed, and its restart policy decides.

` + instanceHelp,
		Example: "  nusa alloc signal 1f3a SIGHUP\n  nusa alloc signal hello/greeter/0 usr1 --task greet",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			a, err := findAlloc(ctx, c, args[0])
			if err != nil {
				return err
			}
			r, err := c.Allocs().Signal(ctx, &nusav1.SignalAllocationRequest{Allocation: a.GetId(), Task: task, Signal: args[1]})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) {
				fmt.Fprintf(w, "%s (%s): sent %s to %s\n", term.ShortID(a.GetId()), instance(a), strings.ToUpper(args[1]), tasksText(r.GetTasks()))
			})
		}),
	}
	c.Flags().StringVar(&task, "task", "", "name of the task; default: all running tasks")
	return c
}

// tasksText returns names of tasks for a message, for example "tasks log, web".
func tasksText(names []string) string {
	if len(names) == 1 {
		return "task " + names[0]
	}
	return "tasks " + strings.Join(names, ", ")
}
