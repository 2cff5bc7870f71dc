package job

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxArgs bounds the arguments of a command.
const maxArgs = 1024

// ProcessConfig is the config of a task of the driver process.
type ProcessConfig struct {
	// Command is the program: a path, or a name that is looked up in PATH.
	Command string
	Args    []string
	// User is the user that runs the program; empty = the agent's user.
	User string
	// Dir is the working directory. A relative path is below the allocation folder. Empty
	// = the task's folder.
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

// checkConfig validates the config of a task of a built-in driver. A plugin validates the
// config of its own tasks.
func checkConfig(c *checker, p string, t *nusav1.Task, g *nusav1.Group) {
	switch t.GetDriver() {
	case "process":
		checkProcessConfig(c, p, t)
	case "docker":
		checkDockerConfig(c, p, t, g)
	case "incus":
		checkIncusConfig(c, p, t, g)
	}
}

// checkConfigField reports whether a field is known, and adds a problem if not.
func checkConfigField(c *checker, at, k string, known []string) bool {
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

func checkProcessConfig(c *checker, p string, t *nusav1.Task) {
	fields := t.GetConfig().GetFields()
	known := []string{"command", "args", "user", "dir", "cpu_hard_limit", "ulimits"}
	for _, k := range sorted(fields) {
		at := join(p, k)
		switch {
		case !checkConfigField(c, at, k, known):
		case k == "args":
			checkArgs(c, at, fields[k])
		case k == "cpu_hard_limit":
			if _, ok := fields[k].GetKind().(*structpb.Value_BoolValue); !ok {
				c.fail(at, "must be true or false")
			}
		case k == "ulimits":
			checkUlimits(c, at, fields[k])
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

// Ulimits are the names of the limits of a process, as in ulimit and limits.conf.
var Ulimits = []string{"as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "stack"}

// checkUlimits validates a map of limits. A limit is a number, "unlimited", or two of
// these as "soft:hard".
func checkUlimits(c *checker, p string, v *structpb.Value) {
	m, ok := v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		c.fail(p, "must be a map such as {nofile: 4096}")
		return
	}
	fields := m.StructValue.GetFields()
	for _, k := range sorted(fields) {
		at := join(p, k)
		if !checkConfigField(c, at, k, Ulimits) {
			continue
		}
		if _, _, err := ParseUlimit(fields[k].AsInterface()); err != nil {
			c.fail(at, "%v", err)
		}
	}
}

// ParseUlimit reads a limit. The soft limit is not greater than the hard limit.
// "unlimited" is math.MaxUint64.
func ParseUlimit(v any) (soft, hard uint64, err error) {
	one := func(s string) uint64 {
		if s == "unlimited" {
			return math.MaxUint64
		}
		n, e := strconv.ParseUint(s, 10, 63)
		err = errors.Join(err, e)
		return n
	}
	switch v := v.(type) {
	case float64:
		if v < 0 || v != math.Trunc(v) || v >= 1<<53 {
			break
		}
		return uint64(v), uint64(v), nil
	case string:
		s, h, two := strings.Cut(v, ":")
		if !two {
			h = s
		}
		soft, hard = one(s), one(h)
		if err == nil && soft <= hard {
			return soft, hard, nil
		}
	}
	return 0, 0, errors.New(`must be a whole number, unlimited, or two of these as "soft:hard"`)
}

func isText(v *structpb.Value) bool {
	_, ok := v.GetKind().(*structpb.Value_StringValue)
	return ok
}

func checkArgs(c *checker, p string, v *structpb.Value) {
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
		c.argument(at, a.GetStringValue(), 0)
	}
}
