package job

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// In a job file a message has the fields of its proto definition, with these differences:
// enumerations are lower-case names without the prefix, durations are text such as 1m30s,
// and the variables rules and lists change some fields.

// unit is the form of a whole number in a file.
type unit int

const (
	plain unit = iota
	milli      // 500m, 0.5
	size       // 256MiB
)

// rule says how one field differs in a file from its proto definition.
type rule struct {
	// name is the name in files, if it differs from the proto's name.
	name string
	// also is a second name that files may use.
	also string
	unit unit
	// inline maps the fields of a message to the names under which they are written
	// directly in the parent. It is nil if the message is written as a mapping of its own.
	inline map[string]string
	// positive refuses a 0 in the file, because 0 in the message means that the field is
	// absent.
	positive bool
}

var rules = map[protoreflect.FullName]rule{
	"nusa.v1.JobSpec.name":            {also: "job"},
	"nusa.v1.Resources.cpu_milli":     {name: "cpu", unit: milli, positive: true},
	"nusa.v1.Resources.memory_bytes":  {name: "memory", unit: size, positive: true},
	"nusa.v1.Resources.disk_bytes":    {name: "disk", unit: size},
	"nusa.v1.RetryMemory.factor":      {positive: true},
	"nusa.v1.RetryMemory.limit_bytes": {name: "limit", unit: size, positive: true},
	"nusa.v1.GPU.models":              {name: "model", also: "models"},
	"nusa.v1.GPU.share_milli":         {name: "share", unit: milli},
	"nusa.v1.Logs.files":              {positive: true},
	"nusa.v1.Check.failures":          {positive: true},
	"nusa.v1.Logs.size_bytes":         {name: "size", unit: size, positive: true},
	"nusa.v1.Near.percentile":         {positive: true},
	"nusa.v1.Near.data_bytes":         {name: "data", unit: size, positive: true},
	"nusa.v1.StepData.size_bytes":     {name: "size", unit: size, positive: true},
	"nusa.v1.StepSemaphore.units":     {positive: true},
	"nusa.v1.Schedule.buffer":         {positive: true},
	"nusa.v1.RunHistory.count":        {positive: true},
	"nusa.v1.Workflow.max_parallel":   {positive: true},
	"nusa.v1.Foreach.max_parallel":    {positive: true},
	"nusa.v1.Update.max_parallel":     {positive: true},
	"nusa.v1.Preference.selector":     {inline: map[string]string{"name": "name", "labels": "labels"}},
	"nusa.v1.Near.selector":           {inline: map[string]string{"name": "region", "labels": "labels"}},
	"nusa.v1.RegionDefinition.name":   {also: "region"},
}

// lists maps messages that a file writes as a list to the field with the items of the
// list.
var lists = map[protoreflect.FullName]protoreflect.Name{
	"nusa.v1.Colocation":   "groups",
	"nusa.v1.CommandCheck": "command",
}

const (
	durationName = "google.protobuf.Duration"
	structName   = "google.protobuf.Struct"
	locationName = "nusa.v1.Location"
)

// column is a field of a message as a file has it.
type column struct {
	name string
	fd   protoreflect.FieldDescriptor
	// via is the field of the parent that holds the inline message with fd. It is nil if
	// fd is not inline.
	via protoreflect.FieldDescriptor
	rule
}

// columns returns the fields of a message in the order in which a file has them.
func columns(md protoreflect.MessageDescriptor) []column {
	var out []column
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		r := rules[fd.FullName()]
		if r.inline != nil {
			inner := fd.Message().Fields()
			for j := range inner.Len() {
				f := inner.Get(j)
				out = append(out, column{name: r.inline[string(f.Name())], fd: f, via: fd})
			}
			continue
		}
		name := r.name
		if name == "" {
			name = string(fd.Name())
		}
		out = append(out, column{name: name, fd: fd, rule: r})
	}
	return out
}

// enumName returns the name of an enumeration value in files, for example "batch" for
// JOB_TYPE_BATCH. It returns "" for the unspecified value.
func enumName(v protoreflect.EnumValueDescriptor) string {
	if v == nil || v.Number() == 0 {
		return ""
	}
	zero := string(v.Parent().(protoreflect.EnumDescriptor).Values().ByNumber(0).Name())
	prefix := strings.TrimSuffix(zero, "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}

func enumNames(ed protoreflect.EnumDescriptor) []string {
	var out []string
	for i := range ed.Values().Len() {
		if name := enumName(ed.Values().Get(i)); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// longKey is the length of a key from which on a path has only the beginning of the key, in bytes.
const longKey = 256

// join appends a field or key to a path. A key that is not a plain word is quoted. A long key is cut, because
// each error about what is below has the path.
func join(path, key string) string {
	if len(key) > longKey {
		return path + `["` + clip(key[:longKey]) + `"]`
	}
	plainKey := key != ""
	for _, c := range key {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			plainKey = false
		}
	}
	switch {
	case !plainKey:
		return path + `["` + clip(key) + `"]`
	case path == "":
		return key
	}
	return path + "." + key
}
