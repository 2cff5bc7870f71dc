package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/internal/suggest"
)

// Noun returns a command that only has sub-commands, its verbs.
func Noun(use, short string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: HelpOrUnknown}
	c.AddCommand(verbs...)
	return c
}

// HelpOrUnknown runs a command that only has sub-commands. Without arguments it prints the
// help. With an argument it returns an error, because the argument names no sub-command.
func HelpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	hint := fmt.Sprintf(": see %s --help", cmd.CommandPath())
	if near := nearCommands(cmd, args[0]); len(near) > 0 {
		hint = ", did you mean " + strings.Join(near, " or ") + "?"
	}
	for _, sub := range append([]*cobra.Command{cmd}, cmd.Commands()...) {
		if instead := sub.Annotations[insteadKey+args[0]]; instead != "" {
			hint = fmt.Sprintf(", did you mean `%s %s`?", cmd.Root().CommandPath(), instead)
		}
	}
	return fmt.Errorf("unknown command %q of %s%s", args[0], cmd.CommandPath(), hint)
}

// mistypedMost is the greatest number of edits by which the name of a command may differ and still
// count as mistyped.
const mistypedMost = 2

// nearCommands returns the sub-commands whose names begin with a name, or else those that differ from
// the name by the fewest edits. A name is not near if the edits leave no letter of it.
func nearCommands(cmd *cobra.Command, name string) []string {
	name = strings.ToLower(name)
	var out []string
	least := mistypedMost
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		edits := suggest.Distance(name, sub.Name())
		if strings.HasPrefix(sub.Name(), name) {
			edits = 0
		}
		switch {
		case edits > least || edits >= len(name):
			continue
		case edits < least:
			least, out = edits, nil
		}
		out = append(out, sub.Name())
	}
	return out
}

// insteadKey is the prefix of annotations that suggest another command for a command that
// does not exist.
const insteadKey = "nusa-instead-of-"

// Instead adds a suggestion to a command. If the user types one of the names as a command
// beside it, or below it, the error suggests line. line does not begin with "nusa".
func Instead(cmd *cobra.Command, line string, names ...string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	for _, name := range names {
		cmd.Annotations[insteadKey+name] = line
	}
}

// UnknownCommand returns an error if a command line with flags names a command that does not
// exist. cobra itself would say that the parent command does not have the flag, or print
// its help.
func UnknownCommand(root *cobra.Command, args []string) error {
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") }) {
		return nil
	}
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasSubCommands() || len(rest) > 0 && slices.Contains(ofCobra, rest[0]) {
		return nil
	}
	for i := 0; i < len(rest) && rest[i] != "--"; i++ {
		name, isFlag := strings.CutPrefix(rest[i], "-")
		if !isFlag {
			return HelpOrUnknown(cmd, rest[i:])
		}
		name = strings.TrimPrefix(name, "-")
		name, _, _ = strings.Cut(name, "=")
		flag := cmd.Flag(name)
		if len(name) == 1 {
			flag = cmd.PersistentFlags().ShorthandLookup(name)
		}
		switch {
		case name == "help", name == "h", strings.Contains(rest[i], "="):
		case flag == nil:
			return nil // cobra names the unknown flag
		case flag.NoOptDefVal == "":
			i++ // skip the flag's value
		}
	}
	return nil
}

// ofCobra are the commands that cobra adds when the root command runs.
var ofCobra = []string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

// Positional checks the number of arguments. A name in [] is optional.
func Positional(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		usage := "usage: " + strings.Join(append([]string{cmd.CommandPath()}, names...), " ")
		if len(args) > len(names) {
			if len(names) == 0 {
				return fmt.Errorf("%q: this command takes no arguments; see %s --help", args[0], cmd.CommandPath())
			}
			return fmt.Errorf("%q is one argument too many; %s", args[len(names)], usage)
		}
		for _, name := range names[len(args):] {
			if !strings.HasPrefix(name, "[") {
				return fmt.Errorf("%s is missing; %s%s", name, usage, whereListed(cmd, name))
			}
		}
		return nil
	}
}

// listing has the commands that list what the words for arguments stand for.
var listing = map[string]string{
	"JOB": "job list", "NODE": "node list", "REGION": "region list", "RUN": "workflow list", "ID|JOB": "alloc list", "STEP": "workflow status RUN",
}

// whereListed says which command lists what a word for an argument stands for, or "".
func whereListed(cmd *cobra.Command, word string) string {
	list := listing[word]
	if list != "" {
		list = cmd.Root().CommandPath() + " " + list
	}
	for _, beside := range cmd.Parent().Commands() { // a command with arguments has a parent
		if list == "" && beside.Name() == "list" && slices.Contains([]string{"ID", "NAME", "UUID", "DOMAIN", "POOL"}, word) {
			list = beside.CommandPath()
		}
	}
	if list == "" {
		return ""
	}
	return "; `" + list + "` shows them"
}

// kinds maps the type of a flag to a description of its values.
var kinds = map[string]string{
	"int": "a whole number", "int32": "a whole number", "int64": "a whole number", "uint": "a whole number from 0",
	"float64": "a number", "bool": "true or false", "duration": "a duration such as 500ms, 30s or 5m", "stringToString": "KEY=VALUE",
	durationType: "a duration such as 500ms, 30m or 24h",
}

// FlagError returns an error of one line that names the flag and the values that it
// accepts.
func FlagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var required *pflag.ValueRequiredError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &value) && value.GetFlag().Value.Type() == durationType:
		return fmt.Errorf("--%s: %w", value.GetFlag().Name, value.Unwrap())
	case errors.As(err, &value) && value.GetFlag().Value.Type() == "int64" && strings.Contains(value.GetFlag().Usage, "MiB"):
		return fmt.Errorf("--%s: %q is not a whole number of MiB, such as 1024", value.GetFlag().Name, value.GetValue())
	case errors.As(err, &value):
		if kind, ok := kinds[value.GetFlag().Value.Type()]; ok {
			return fmt.Errorf("--%s: %q is not %s", value.GetFlag().Name, value.GetValue(), kind)
		}
		return fmt.Errorf("--%s: %q: %w", value.GetFlag().Name, value.GetValue(), value.Unwrap())
	case errors.As(err, &required):
		kind := kinds[required.GetFlag().Value.Type()]
		if kind == "" {
			kind = "a value"
		}
		return fmt.Errorf("--%s: needs %s", required.GetFlag().Name, kind)
	case errors.As(err, &unknown):
		name := "--" + unknown.GetSpecifiedName()
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			name, known = "-"+short[:1], nil
		}
		if near := suggest.Nearest(unknown.GetSpecifiedName(), known); near != "" {
			return fmt.Errorf("unknown flag %s, did you mean --%s?", name, near)
		}
		return fmt.Errorf("unknown flag %s: see %s --help", name, cmd.CommandPath())
	}
	return err
}
