package client

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// program is how hints name this binary: as it was called when that was by a
// path, since it need not be in $PATH then.
func program(arg0 string) string {
	if strings.ContainsRune(arg0, '/') {
		return arg0
	}
	return "nusa"
}

// callMe makes help texts and hints name the binary as it was called.
func callMe(root *cobra.Command, name string) {
	if name == root.Name() {
		return
	}
	if root.Annotations == nil {
		root.Annotations = map[string]string{}
	}
	root.Annotations[cobra.CommandDisplayNameAnnotation] = name
	var examples func(c *cobra.Command)
	examples = func(c *cobra.Command) {
		lines := strings.Split(c.Example, "\n")
		for i, line := range lines {
			if rest, ok := strings.CutPrefix(line, "  "+root.Name()+" "); ok {
				lines[i] = "  " + name + " " + rest
			}
		}
		c.Example = strings.Join(lines, "\n")
		for _, sub := range c.Commands() {
			examples(sub)
		}
	}
	examples(root)
}

// Program is how a command's hints should name the binary.
func Program(cmd *cobra.Command) string { return cmd.Root().CommandPath() }

// called puts the binary's name, as it was called, into a server's hint.
func called(text, name string) string {
	return strings.ReplaceAll(text, " nusa job ", " "+name+" job ")
}

// takes checks the arguments of a command by their names; one in [] may be
// left out.
func takes(names ...string) cobra.PositionalArgs {
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
				return fmt.Errorf("%s is missing; %s", name, usage)
			}
		}
		return nil
	}
}

// kinds are what the values of a flag are, by its type.
var kinds = map[string]string{
	"int": "a whole number", "int32": "a whole number", "int64": "a whole number", "uint": "a whole number from 0",
	"float64": "a number", "bool": "true or false", "duration": "a duration such as 500ms, 30s or 5m", "stringToString": "KEY=VALUE",
	spanType: "a duration such as 500ms, 30m or 24h",
}

// flagError says in one line which flag is wrong, and what it takes.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var required *pflag.ValueRequiredError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &value) && value.GetFlag().Value.Type() == spanType:
		return fmt.Errorf("--%s: %w", value.GetFlag().Name, value.Unwrap())
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
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			name = "-" + short[:1]
		}
		return fmt.Errorf("unknown flag %s: see %s --help", name, cmd.CommandPath())
	}
	return err
}
