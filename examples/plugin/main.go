// Command plugin is an example of a driver plugin: the driver "script", whose tasks are
// scripts in the job file.
//
//	go build -o script ./examples/plugin
//	nusa dev --plugin script=./script          # or: nusa agent --plugin script=/usr/local/bin/script
//	nusa job run examples/plugin/job.yaml
//
// It reuses the process driver for supervisors (tasks outlive agent and plugin), logs,
// limits and exec. A driver for an engine that keeps tasks alive itself implements
// driver.Driver, as agent/driver/docker does: eight methods when it embeds
// driver.Unsupported.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/plugin"
	"github.com/nusa-scheduler/nusa/agent/driver/process"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/job/config"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err) // the agent shows the last line
		os.Exit(1)
	}
}

func run() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p := process.New(process.Config{Dir: plugin.Dir(), SupervisorArgv: []string{self, "supervise"}})
	defer p.Close()
	return plugin.Serve("script", scripts{p})
}

// form is the form of the config in job files. Regions refuse a job whose config has another form.
var form = config.Schema{
	{Name: "text", Kind: config.Text, Required: true, Help: "the script"},
	{Name: "interpreter", Kind: config.Text, Help: "the program that reads the script, sh without it"},
}

// scripts is the driver. It embeds the process driver and replaces two of its methods.
type scripts struct{ *process.Driver }

// Fingerprint returns the health, version and capabilities of the driver, for the
// scheduler and for `nusa node status`.
func (s scripts) Fingerprint(ctx context.Context) driver.Fingerprint {
	f := s.Driver.Fingerprint(ctx)
	f.Version, f.Config = "script 1", form
	return f
}

// Start writes the script into the task's folder and runs it there.
func (s scripts) Start(ctx context.Context, t driver.Task) error {
	v, err := form.Read(t.Config)
	if err != nil { // users read this error, so it names the field
		return fmt.Errorf("%w: task %s: %w", driver.ErrInvalid, t.ID.Task, err)
	}
	file := filepath.Join(t.Dir, "script")
	if err := replace(file, v.Text("text", "")); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err) // a retry may succeed
	}
	env := map[string]string{"PATH": os.Getenv("PATH")} // the agent leaves PATH to the engine
	maps.Copy(env, t.Env)
	t.Env = env
	t.Config = map[string]any{"command": v.Text("interpreter", "sh"), "args": []any{file}}
	return s.Driver.Start(ctx, t)
}

// replace writes the file as a whole. The agent may start a task again while an interpreter
// reads the file: the interpreter goes on reading the old file.
func replace(file, text string) error {
	next, err := os.CreateTemp(filepath.Dir(file), "script-*")
	if err != nil {
		return err
	}
	defer os.Remove(next.Name())
	_, err = next.WriteString(text)
	if err := errors.Join(err, next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), file)
}
