package job

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxArgs is how many arguments a command may have.
const maxArgs = 1024

// ProcessConfig is the config of a task of the driver process.
type ProcessConfig struct {
	// Command is the program: a path, or a name looked up in PATH.
	Command string
	Args    []string
	// User to run as; empty = the agent's.
	User string
	// Dir is the working directory, below the allocation folder unless
	// absolute; empty = the task's own folder.
	Dir string
}

// ProcessConfigOf reads the config of a task that Validate accepted.
func ProcessConfigOf(t *nusav1.Task) ProcessConfig {
	f := t.GetConfig().GetFields()
	out := ProcessConfig{Command: f["command"].GetStringValue(), User: f["user"].GetStringValue(), Dir: f["dir"].GetStringValue()}
	for _, a := range f["args"].GetListValue().GetValues() {
		out.Args = append(out.Args, a.GetStringValue())
	}
	return out
}

// dockerFields of the config of a task of the driver docker;
// examples/docker.yaml explains them.
var dockerFields = []string{"image", "pull", "entrypoint", "command", "args", "user", "dir", "labels", "network", "udp", "pids_limit", "cpu_hard_limit", "privileged"}

// config checks the settings of the drivers known here; those of other
// drivers, plugins among them, are checked by the driver itself.
func (c *checker) config(p string, t *nusav1.Task) {
	switch t.GetDriver() {
	case "process":
		c.processConfig(p, t)
	case "docker": // what has to be there, and its values, the driver knows
		for _, k := range sorted(t.GetConfig().GetFields()) {
			c.knownField(join(p, k), k, dockerFields)
		}
	}
}

// knownField notes a field that is none of the known.
func (c *checker) knownField(at, k string, known []string) bool {
	if slices.Contains(known, k) {
		return true
	}
	hint := didYouMean(k, known)
	if hint == "" {
		hint = ", known here are " + strings.Join(known, ", ")
	}
	c.fail(at, "unknown field%s", hint)
	return false
}

func (c *checker) processConfig(p string, t *nusav1.Task) {
	fields := t.GetConfig().GetFields()
	known := []string{"command", "args", "user", "dir"}
	for _, k := range sorted(fields) {
		at := join(p, k)
		switch {
		case !c.knownField(at, k, known):
		case k == "args":
			c.args(at, fields[k])
		default:
			s, ok := fields[k].GetKind().(*structpb.Value_StringValue)
			if !ok {
				c.fail(at, "must be text")
				continue
			}
			c.text(at, s.StringValue, 4096)
		}
	}
	if f, ok := fields["command"]; !ok || isText(f) && f.GetStringValue() == "" {
		c.fail(join(p, "command"), "is missing: the program to run")
	}
}

func isText(v *structpb.Value) bool {
	_, ok := v.GetKind().(*structpb.Value_StringValue)
	return ok
}

func (c *checker) args(p string, v *structpb.Value) {
	l, ok := v.GetKind().(*structpb.Value_ListValue)
	if !ok {
		c.fail(p, "must be a list of text")
		return
	}
	c.count(p, len(l.ListValue.GetValues()), maxArgs, "arguments")
	for i, a := range l.ListValue.GetValues() {
		at := fmt.Sprintf("%s[%d]", p, i)
		if !isText(a) {
			c.fail(at, "must be text: write it in quotes")
			continue
		}
		c.text(at, a.GetStringValue(), maxText)
	}
}
