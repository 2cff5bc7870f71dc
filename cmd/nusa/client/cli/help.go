package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// HelpWidth is the width of help texts. A terminal of 80 columns shows each of their lines
// whole.
const HelpWidth = 79

// Help writes the help of a command: what the command does, then its usage.
func Help(c *cobra.Command, _ []string) {
	w := c.OutOrStdout()
	if text := strings.TrimSpace(cmp.Or(c.Long, c.Short)); text != "" {
		fmt.Fprintf(w, "%s\n\n", reflow(text))
	}
	if c.Runnable() || c.HasSubCommands() {
		fmt.Fprint(w, c.UsageString())
	}
}

// reflow breaks the lines of each paragraph that has a line of more than HelpWidth columns.
// Other paragraphs and indented ones stay as they are.
func reflow(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		wide := func(line string) bool { return ansi.StringWidth(line) > HelpWidth }
		if slices.ContainsFunc(strings.Split(p, "\n"), wide) && !strings.HasPrefix(p, " ") {
			paragraphs[i] = hanging("", p)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// Usage writes the usage of a command, like cobra does, but with lines of at most HelpWidth
// columns.
func Usage(c *cobra.Command) error {
	w := c.OutOrStderr()
	fmt.Fprint(w, "Usage:")
	if c.Runnable() {
		fmt.Fprint(w, "\n  "+c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprint(w, "\n  "+c.CommandPath()+" [command]")
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(w, "\n\nAliases:\n  %s", c.NameAndAliases())
	}
	if c.HasExample() {
		fmt.Fprintf(w, "\n\nExamples:\n%s", c.Example)
	}
	usageOfCommands(w, c)
	usageOfFlags(w, "Flags", c.LocalFlags())
	usageOfFlags(w, "Global Flags", c.InheritedFlags())
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n\nUse \"%s [command] --help\" for more about a command.", c.CommandPath())
	}
	fmt.Fprintln(w)
	return nil
}

// usageOfCommands writes the sub-commands, by group.
func usageOfCommands(w io.Writer, c *cobra.Command) {
	if !c.HasAvailableSubCommands() {
		return
	}
	list := func(title, group string) {
		first := true
		for _, sub := range c.Commands() {
			if sub.GroupID != group || !sub.IsAvailableCommand() && sub.Name() != "help" {
				continue
			}
			if first {
				fmt.Fprintf(w, "\n\n%s", title)
			}
			first = false
			name := fmt.Sprintf("  %-*s ", sub.NamePadding(), sub.Name())
			fmt.Fprint(w, "\n"+hanging(name, sub.Short))
		}
	}
	for _, g := range c.Groups() {
		list(g.Title, g.ID)
	}
	rest := "Available Commands:"
	if len(c.Groups()) > 0 {
		rest = "Additional Commands:"
	}
	list(rest, "")
}

// usageOfFlags writes flags, each with its meaning beside it.
func usageOfFlags(w io.Writer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	var heads, texts []string
	for line := range strings.Lines(flags.FlagUsages()) {
		head, text := splitFlag(strings.TrimRight(line, "\n"))
		heads, texts = append(heads, head), append(texts, text)
	}
	width := 0
	for _, h := range heads {
		width = max(width, min(ansi.StringWidth(h), maxFlagHead))
	}
	fmt.Fprintf(w, "\n\n%s:", title)
	for i, h := range heads {
		if ansi.StringWidth(h) > width { // the meaning begins on the next line
			fmt.Fprint(w, "\n"+h)
			h = ""
		}
		fmt.Fprint(w, "\n"+hanging(fmt.Sprintf("%-*s   ", width, h), texts[i]))
	}
}

// maxFlagHead is the greatest width of a flag and its kind of value. If a flag is wider,
// its meaning begins on the next line.
const maxFlagHead = 32

// splitFlag splits a line of pflag into the flag with the kind of its value, and its
// meaning.
func splitFlag(line string) (head, text string) {
	const before = len("  -x, --") // blanks before the name do not separate
	if len(line) <= before {
		return line, ""
	}
	i := strings.Index(line[before:], "   ")
	if i < 0 {
		return line, ""
	}
	return line[:before+i], strings.TrimSpace(line[before+i:])
}

// hanging returns a head and a text behind it. Further lines of the text are indented by
// the width of the head.
func hanging(head, text string) string {
	indent := strings.Repeat(" ", ansi.StringWidth(head))
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := lines[len(lines)-1]
		switch {
		case last == "":
			lines[len(lines)-1] = word
		case len(indent)+ansi.StringWidth(last)+1+ansi.StringWidth(word) > HelpWidth:
			lines = append(lines, word)
		default:
			lines[len(lines)-1] = last + " " + word
		}
	}
	return strings.TrimRight(head+strings.Join(lines, "\n"+indent), " ")
}
