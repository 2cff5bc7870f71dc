// Package client is the commands of nusa that talk to a running federation:
// noun, verb, one line per error that says what to do next, and -o json|yaml
// wherever data is printed. It decides nothing: what it shows is what the
// servers answered.
package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/internal/serve"
)

// DefaultAddr is the global server a client talks to unless told otherwise.
const DefaultAddr = "127.0.0.1:7600"

// Exit codes. `job plan` has its own: 0 no change, 1 changes, 255 error.
const (
	exitDone     = 0
	exitFail     = 1
	exitWaiting  = 2 // accepted, but not placed or not healthy in time
	exitFailed   = 3 // accepted, and it has failed: waiting longer changes nothing
	exitUnknown  = 2 // perhaps accepted: 1 would promise that nothing was changed
	planChanges  = 1
	planError    = 255
	errorCodeKey = "nusa-error-code" // annotation: exit code of errors, if not 1
)

// Groups of commands in the help.
const (
	groupWork  = "work"
	groupLook  = "look"
	groupRoles = "roles"
)

// Root is the command nusa without sub-commands.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "nusa",
		Short: "A federated workload scheduler",
		Long: `Nusa schedules jobs over a federation of regions: it knows how far they are
from one another, what each can still fit, and says why it chose.

Exit codes: 0 done; 1 error; 2 accepted (or perhaps so, when no answer came), but
not placed or not healthy within --timeout; 3 accepted, and the batch job failed
or the new version was taken back. job plan: 0 no change, 1 changes, 255 error.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       serve.Version,
		Args:          cobra.ArbitraryArgs,
		RunE:          helpOrUnknown,
	}
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(helpCommand())
	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Work:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupRoles, Title: "Run Nusa:"},
	)
	return root
}

// Commands are the client's commands, to be added to Root.
func Commands() []*cobra.Command {
	all := []*cobra.Command{
		jobCommand(), allocCommand(), regionCommand(), nodeCommand(), originCommand(),
		latencyCommand(), topologyCommand(), eventsCommand(), versionCommand(),
	}
	for i, c := range all {
		c.GroupID = groupWork
		if i >= 5 {
			c.GroupID = groupLook
		}
	}
	return all
}

// Execute runs the command that the process's arguments name and answers the
// exit code. Errors go to standard error.
func Execute(ctx context.Context, root *cobra.Command) int {
	callMe(root, program(os.Args[0]))
	return ExecuteArgs(ctx, root, os.Args[1:])
}

// ExecuteArgs is Execute with arguments of its own.
func ExecuteArgs(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	var exit *exitError
	if errors.As(err, &exit) && exit.err == nil {
		return exit.code
	}
	for _, line := range errorLines(err) {
		fmt.Fprintln(root.ErrOrStderr(), "nusa: "+line)
	}
	if exit != nil {
		return exit.code
	}
	if code, err := strconv.Atoi(cmd.Annotations[errorCodeKey]); err == nil {
		return code
	}
	return exitFail
}

// exitError ends the process with a code; err is nil when all has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "exit code " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// noun is a command that only holds others.
func noun(use, short string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: helpOrUnknown}
	c.AddCommand(verbs...)
	return c
}

// helpCommand is cobra's, but what is no command is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND…]", Short: "Help about any command",
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var out []cobra.Completion
			if of, rest, err := c.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range of.Commands() {
					if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), begun) {
						out = append(out, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			of, rest, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag() // not there before a command is run
			return helpOrUnknown(of, rest)
		},
	}
}

func helpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	if cmd.SuggestionsMinimumDistance == 0 {
		cmd.SuggestionsMinimumDistance = 2 // letters, as cobra does for its own errors
	}
	hint := fmt.Sprintf(": see %s --help", cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = ", did you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q of %s%s", args[0], cmd.CommandPath(), hint)
}
