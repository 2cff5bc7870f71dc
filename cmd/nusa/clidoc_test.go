package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/internal/config"
	"github.com/nusa-scheduler/nusa/internal/golden"
)

// cliPage is the page of all commands.
const cliPage = "../../docs/cli.md"

// TestCLIPageIsCurrent: docs/cli.md is generated from the commands. After a
// change of a command, run: go test ./cmd/nusa -run CLIPage -update
func TestCLIPageIsCurrent(t *testing.T) {
	for _, variable := range os.Environ() { // the NUSA_ variables change the defaults of flags
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "NUSA_") {
			t.Setenv(name, "")
		}
	}
	golden.File(t, cliPage, cliText(newRoot()))
}

const cliIntro = `# Commands

<!-- Written by: go test ./cmd/nusa -run CLIPage -update -->

` + "`nusa`" + ` is one binary: the client, the three roles and a federation to try. A command is a noun and a verb, such as
` + "`nusa job run`" + `; ` + "`nusa NOUN VERB --help`" + ` prints what is below. ` + "`-o json`" + ` and ` + "`-o yaml`" + ` print messages as they are in
[the API](../proto/nusa/v1/api.proto). Tables have colours on a terminal only.

Jobs are named ` + "`NAME`, `NAMESPACE/NAME` or, when they belong to one region, `NAME@REGION`" + `. Instances are named by their
allocation's id, or the beginning of it, or as ` + "`JOB/GROUP/INDEX`" + `.

## Completion

The shell completes commands, flags and the names that the server has: jobs, regions, nodes, allocations, groups, versions,
labels and runs. ` + "`nusa completion --help`" + ` names the other shells.

` + "```sh example\nsource <(nusa completion bash)                   # in ~/.bashrc\n```" + `

## Exit codes

| code | meaning |
|---|---|
| 0 | done; ` + "`job plan`: no change; `region verify`" + `: all servers hold the same state |
| 1 | error, and nothing was changed; ` + "`job plan`: changes; `region verify`: states differ" + ` |
| 1 | ` + "`origin resolve`: no origin; `topology check --fail`: findings; `auth can-i`" + `: no |
| 2 | ` + "`job run`" + `: accepted, or no response came, but not running within ` + "`--timeout`" + ` |
| 2 | ` + "`job wait`, `job stop --wait`, `job restart`, `node drain --wait`: not done within `--timeout`" + ` |
| 3 | ` + "`job run`" + `: accepted, but failed |
| 4 | ` + "`job run`" + `: the new version failed, and the job was taken back to the version before |
| 126, 127 | ` + "`alloc exec`" + `: the command cannot be executed, or was not found |
| 130 | ` + "`alloc exec`" + `: interrupted |
| 255 | ` + "`job plan`, `alloc exec`" + `: error of Nusa itself |

` + "`alloc exec`" + ` otherwise ends with the exit code of its command.

## Environment

| variable | meaning |
|---|---|
| ` + "`NUSA_ADDR`" + ` | default of ` + "`--addr`" + `: the server that the client talks to |
| ` + "`NUSA_NAMESPACE`" + ` | default of ` + "`--namespace`" + ` |
| ` + "`NUSA_REGION`" + ` | default of ` + "`--region`" + ` where the client has that flag |
| ` + "`NUSA_IDENTITY`" + ` | default of ` + "`--identity`" + `: the folder with the credentials |
| ` + "`NUSA_TOKEN_FILE`, `NUSA_TOKEN`" + ` | a file with an access token, or the token: used instead of the certificate |
| ` + "`NO_COLOR`, `TERM=dumb`" + ` | no colours |
| ` + "`NUSA_CONFIG`" + ` | default of ` + "`--config`" + ` of the roles |
| ` + "`NUSA_`" + `*FLAG* | every flag of a role: ` + "`NUSA_GRPC_ADDR` is `--grpc-addr`" + `; priority: flag, variable, file |
`

// cliText returns the page: the introduction, and each command with its flags.
func cliText(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(cliIntro)
	fmt.Fprint(&b, "\n## All commands\n\n| command | what it does |\n|---|---|\n")
	all := commandsBelow(root)
	for _, c := range all {
		path := c.CommandPath()
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", path, strings.ReplaceAll(path, " ", "-"), cell(c.Short))
	}
	shared := sharedFlags(root)
	fmt.Fprintf(&b, "\n## Shared flags\n%s", flagHead)
	shared.VisitAll(func(f *pflag.Flag) { b.WriteString(flagRow(f)) })
	for _, c := range all {
		writeCommand(&b, c, shared)
	}
	return b.String()
}

// commandsBelow returns the roles, and the commands without sub-commands in the order of
// the help.
func commandsBelow(cmd *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, c := range cmd.Commands() {
		switch {
		case c.Hidden || c.Name() == "help" || c.Name() == "completion":
		case c.HasSubCommands():
			if c.GroupID == rolesGroup && c.Name() != "config" && c.Name() != "ca" {
				out = append(out, c)
			}
			out = append(out, commandsBelow(c)...)
		default:
			out = append(out, c)
		}
	}
	return out
}

// sharedFlags returns the flags that every command with a call to a server has. The noun
// job has all of them.
func sharedFlags(root *cobra.Command) *pflag.FlagSet {
	job, _, err := root.Find([]string{"job"})
	if err != nil {
		panic(err)
	}
	return job.PersistentFlags()
}

func writeCommand(b *strings.Builder, c *cobra.Command, shared *pflag.FlagSet) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n```text\n%s\n```\n", c.CommandPath(), cell(c.Short), c.UseLine())
	if c.Long != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.Trim(c.Long, "\n"))
	}
	if c.Example != "" {
		var lines []string
		for line := range strings.SplitSeq(c.Example, "\n") {
			lines = append(lines, strings.TrimPrefix(line, "  "))
		}
		fmt.Fprintf(b, "\nExamples:\n\n```sh example\n%s\n```\n", strings.Join(lines, "\n"))
	}
	if of, role := strings.CutPrefix(c.CommandPath(), "nusa config validate "); role {
		fmt.Fprintf(b, "\nIts flags are those of [`nusa %s`](#nusa-%[1]s).\n", of)
		return
	}
	var rows, common []string
	add := func(f *pflag.Flag) {
		switch {
		case f.Hidden || f.Name == "help":
		case shared.Lookup(f.Name) != nil && shared.Lookup(f.Name).Usage == f.Usage:
			common = append(common, flagName(f))
		default:
			rows = append(rows, flagRow(f))
		}
	}
	c.InitDefaultHelpFlag()
	c.LocalFlags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	if len(rows) > 0 {
		b.WriteString(flagHead + strings.Join(rows, ""))
	}
	if len(common) > 0 {
		fmt.Fprintf(b, "\n[Shared flags](#shared-flags): %s.\n", strings.Join(common, ", "))
	}
}

const flagHead = "\n| flag | default | meaning |\n|---|---|---|\n"

func flagName(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "`-" + f.Shorthand + "`, `--" + f.Name + "`"
	}
	return "`--" + f.Name + "`"
}

// flagRow returns the line of a flag in a table.
func flagRow(f *pflag.Flag) string {
	_, usage := pflag.UnquoteUsage(f)
	value := f.DefValue
	switch {
	case f.Name == "name" && value == hostname():
		value = "the host's name"
	case value == "[]" || value == "false" || value == "":
		value = ""
	default:
		value = "`" + value + "`"
	}
	return fmt.Sprintf("| %s | %s | %s |\n", flagName(f), value, cell(usage))
}

// cell makes a text fit into a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
}

// TestEveryVariableIsOnThePage: the page names the variables that the client
// reads.
func TestEveryVariableIsOnThePage(t *testing.T) {
	for _, name := range []string{"NUSA_ADDR", "NUSA_NAMESPACE", "NUSA_REGION", "NUSA_CONFIG", "NO_COLOR", config.EnvName("grpc-addr")} {
		if !strings.Contains(cliIntro, name) {
			t.Errorf("%s is missing", name)
		}
	}
}
