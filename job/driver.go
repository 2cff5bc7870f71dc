package job

import (
	"fmt"
	"hash/fnv"
	"iter"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job/config"
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

// checkConfig validates the config of a task of a built-in driver. A plugin's config has the
// form that its nodes report: see ConfigProblems.
func checkConfig(c *checker, p string, t *nusav1.Task, g *nusav1.Group) {
	form, known := config.Of(t.GetDriver())
	if !known {
		return
	}
	values := t.GetConfig().AsMap()
	form.Check(values, config.Submitted, func(at, text string) { c.fail(c.under(p, at), "%s", text) })
	switch t.GetDriver() {
	case "docker":
		checkDockerConfig(c, p, t, g)
	case "incus":
		checkIncusConfig(c, p, t, g)
	}
}

// ConfigForm is the form of a plugin's config on a node. Schema is nil if the plugin does not report one.
type ConfigForm struct {
	Node   string
	Schema config.Schema
}

// ConfigProblems returns the problems of the configs of plugins. forms returns the nodes with a driver. A
// config is refused if there is such a node and each of them refuses it. The problems are those of the
// first node.
func ConfigProblems(spec *nusav1.JobSpec, forms func(driver string) iter.Seq[ConfigForm]) (out Errors) {
	read := map[string]*formReader{}
	defer func() {
		for _, r := range read {
			r.stop()
		}
	}()
	for _, group := range sorted(spec.GetGroups()) {
		tasks := spec.GetGroups()[group].GetTasks()
		for _, name := range sorted(tasks) {
			driver := tasks[name].GetDriver()
			if _, builtin := config.Of(driver); builtin {
				continue
			}
			if read[driver] == nil {
				next, stop := iter.Pull(forms(driver))
				read[driver] = &formReader{next: next, stop: stop}
			}
			out = append(out, formProblems("groups."+group+".tasks."+name+".config", tasks[name], read[driver])...)
		}
	}
	return out[:min(len(out), maxProblems)]
}

// maxForms bounds the different forms of a driver that a submit is compared with.
const maxForms = 64

// formReader reads the forms of a driver once, as far as they are needed. Most nodes have the same form.
type formReader struct {
	next  func() (ConfigForm, bool)
	stop  func()
	known []ConfigForm // the different ones so far
}

// any reports whether a form that f accepts exists, or so many forms that the agents are to decide.
func (r *formReader) any(f func(ConfigForm) bool) bool {
	if slices.ContainsFunc(r.known, f) {
		return true
	}
	for {
		if len(r.known) == maxForms {
			return true
		}
		x, more := r.next()
		if !more {
			return false
		}
		if slices.ContainsFunc(r.known, func(k ConfigForm) bool { return reflect.DeepEqual(k.Schema, x.Schema) }) {
			continue
		}
		r.known = append(r.known, x)
		if f(x) {
			return true
		}
	}
}

func formProblems(p string, t *nusav1.Task, forms *formReader) (out Errors) {
	values := t.GetConfig().AsMap()
	accepts := func(f ConfigForm) bool { return f.Schema == nil || f.Schema.Error(values, config.Submitted) == nil }
	if forms.any(accepts) || len(forms.known) == 0 {
		return nil
	}
	first := forms.known[0]
	first.Schema.Check(values, config.Submitted, func(at, text string) {
		out = append(out, Problem{Field: p + at, Reason: nusav1.Reason_REASON_CONFIG_INVALID,
			Message: fmt.Sprintf("%s (driver %s on node %s)", text, t.GetDriver(), first.Node)})
	})
	return out
}

// FormsHash returns the hash of GlobalWelcome.forms. It is never 0.
func FormsHash(m *nusav1.DriverForms) uint64 {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m) // such messages can always be encoded
	h := fnv.New64a()
	_, _ = h.Write(raw)
	return max(h.Sum64(), 1)
}

// ConfigSchemaToProto converts the form of a plugin's config. nil: the driver has no form.
func ConfigSchemaToProto(s config.Schema) *nusav1.ConfigSchema {
	if s == nil {
		return nil
	}
	out := &nusav1.ConfigSchema{}
	for _, f := range s {
		out.Fields = append(out.Fields, &nusav1.ConfigField{
			Name: f.Name, Type: nusav1.ConfigType(f.Kind), Required: f.Required, Values: f.Values, Min: f.Min, Max: f.Max,
			Absolute: f.Absolute, Secret: f.Secret, Help: f.Help,
		})
	}
	return out
}

// ConfigSchemaFromProto is the inverse of ConfigSchemaToProto. A type of a later version allows any value.
func ConfigSchemaFromProto(s *nusav1.ConfigSchema) config.Schema {
	if s == nil {
		return nil
	}
	out := make(config.Schema, 0, len(s.GetFields()))
	for _, f := range s.GetFields() {
		to := config.Field{
			Name: f.GetName(), Kind: config.Kind(f.GetType()), Required: f.GetRequired(), Values: f.GetValues(), Min: f.GetMin(), Max: f.GetMax(),
			Absolute: f.GetAbsolute(), Secret: f.GetSecret(), Help: f.GetHelp(),
		}
		if to.Kind < config.Any || to.Kind > config.Map {
			to = config.Field{Name: f.GetName(), Required: f.GetRequired(), Help: f.GetHelp()}
		}
		out = append(out, to)
	}
	return out
}

// ofTask returns the path of a task, given that of its config.
func ofTask(config string) string { return strings.TrimSuffix(config, ".config") }
