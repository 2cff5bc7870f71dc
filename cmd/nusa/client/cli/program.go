package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// ProgramName returns the name of this binary in hints. If the binary was called by a path,
// the name is that path, because the binary may not be in $PATH.
func ProgramName(arg0 string) string {
	if strings.ContainsRune(arg0, '/') {
		return arg0
	}
	return "nusa"
}

// SetProgram makes help texts and hints use the name of this binary.
func SetProgram(root *cobra.Command, name string) {
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

// Program returns the name of the binary in a command's hints.
func Program(cmd *cobra.Command) string { return cmd.Root().CommandPath() }

// WithProgram replaces "nusa" in a server's hint by the name of this binary.
func WithProgram(text, name string) string {
	return strings.NewReplacer(" nusa job ", " "+name+" job ", "`nusa ", "`"+name+" ").Replace(text)
}
