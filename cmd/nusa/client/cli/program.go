package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// ProgramName is how hints name this binary: as it was called when that was by a
// path, since it need not be in $PATH then.
func ProgramName(arg0 string) string {
	if strings.ContainsRune(arg0, '/') {
		return arg0
	}
	return "nusa"
}

// SetProgram makes help texts and hints name the binary as it was called.
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

// Program is how a command's hints should name the binary.
func Program(cmd *cobra.Command) string { return cmd.Root().CommandPath() }

// WithProgram puts the binary's name, as it was called, into a server's hint.
func WithProgram(text, name string) string {
	return strings.ReplaceAll(text, " nusa job ", " "+name+" job ")
}
