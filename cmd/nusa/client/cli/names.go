package cli

import (
	"errors"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// errNoNames is the error of -o name for a result that is no object and no list of objects.
var errNoNames = errors.New("--output name: the result has no names: use table, json or yaml")

// naming are the verbs that list or create objects.
var naming = []string{"list", "run", "create", "set", "define", "dispatch", "trigger", "redrive", "prepare"}

// checkNames returns an error for a command whose result has no names. It is called before the command does anything.
func checkNames(verb *cobra.Command) error {
	switch {
	case !slices.Contains(naming, verb.Name()):
		return errors.New("--output name: only commands that list or create something print names: use table, json or yaml")
	case verb.Name() == "create" && slices.Contains([]string{"token", "webhook"}, verb.Parent().Name()):
		return errors.New("--output name: the command shows a secret once, beside the name: use table, json or yaml")
	}
	return nil
}

// printNames prints the name of an object, or of each object of a list, one in a line. Other commands accept these names.
func printNames(c *Session, m proto.Message) error {
	names, ok := namesOf(m.ProtoReflect())
	if !ok {
		return errNoNames
	}
	for _, name := range names {
		c.Printf("%s\n", name)
	}
	return nil
}

// namesOf returns the names of the objects in a response. It returns false if the response has no objects.
func namesOf(m protoreflect.Message) ([]string, bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !f.IsList() || f.Message() == nil || f.Message().FullName() == partialError || !named(f.Message()) {
			continue
		}
		var out []string
		for list, k := m.Get(f).List(), 0; k < list.Len(); k++ {
			out = append(out, nameOf(list.Get(k).Message()))
		}
		return out, true
	}
	if named(m.Descriptor()) {
		return []string{nameOf(m)}, true
	}
	return nil, false
}

var partialError = (&nusav1.PartialError{}).ProtoReflect().Descriptor().FullName()

// nameFields are the fields that may identify an object, in the order in which they are tried.
var nameFields = []protoreflect.Name{"id", "name", "uuid", "domain"}

// named reports whether nameOf finds a name in messages of a type.
func named(d protoreflect.MessageDescriptor) bool {
	if slices.Contains(special, d.FullName()) {
		return true
	}
	if inner := d.Fields().ByName("definition"); inner != nil && inner.Message() != nil {
		return named(inner.Message())
	}
	for _, name := range nameFields {
		if f := d.Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			return true
		}
	}
	return false
}

// special are the types whose names nameOf does not derive from their fields alone.
var special = []protoreflect.FullName{
	(&nusav1.Job{}).ProtoReflect().Descriptor().FullName(),
	(&nusav1.ScheduleStatus{}).ProtoReflect().Descriptor().FullName(),
	(&nusav1.Override{}).ProtoReflect().Descriptor().FullName(),
	(&nusav1.AuditEntry{}).ProtoReflect().Descriptor().FullName(),
}

// nameOf returns the name of an object in the form that commands accept.
func nameOf(m protoreflect.Message) string {
	switch x := m.Interface().(type) {
	case *nusav1.Job:
		return JobName(x.GetSpec().GetNamespace(), x.GetSpec().GetName(), x.GetRegion())
	case *nusav1.WorkflowRun:
		return JobName(x.GetNamespace(), x.GetName(), "")
	case *nusav1.Semaphore:
		return JobName(x.GetNamespace(), x.GetName(), "")
	case *nusav1.ScheduleStatus:
		return x.GetJob()
	case *nusav1.AuditEntry: // its name is that of the object that was changed
		return strconv.FormatInt(x.GetSeq(), 10)
	case *nusav1.Override:
		return JobName(x.GetNamespace(), x.GetJob(), "")
	}
	if inner := m.Descriptor().Fields().ByName("definition"); inner != nil && inner.Message() != nil {
		return nameOf(m.Get(inner).Message())
	}
	for _, name := range nameFields {
		if f := m.Descriptor().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() && m.Get(f).String() != "" {
			return m.Get(f).String()
		}
	}
	return ""
}
