package job

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The file form of a message is its proto form with these differences: enumerations are
// lower-case values without the prefix, durations are text such as 1m30s, and the rules
// and lists below apply.

// unit is the written form of a whole number.
type unit int

const (
	plain unit = iota
	milli      // 500m, 0.5
	size       // 256MiB
)

// rule is how the file form of one field differs.
type rule struct {
	// name in files, when it differs from the proto's.
	name string
	// also is another accepted name.
	also string
	unit unit
	// inline: the fields of the message are in the parent, under these names.
	inline map[string]string
	// positive refuses a written 0, which in the message would mean absent.
	positive bool
}

var rules = map[protoreflect.FullName]rule{
	"nusa.v1.JobSpec.name":           {also: "job"},
	"nusa.v1.Resources.cpu_milli":    {name: "cpu", unit: milli, positive: true},
	"nusa.v1.Resources.memory_bytes": {name: "memory", unit: size, positive: true},
	"nusa.v1.Resources.disk_bytes":   {name: "disk", unit: size},
	"nusa.v1.GPU.models":             {name: "model", also: "models"},
	"nusa.v1.GPU.share_milli":        {name: "share", unit: milli},
	"nusa.v1.Logs.files":             {positive: true},
	"nusa.v1.Check.failures":         {positive: true},
	"nusa.v1.Logs.size_bytes":        {name: "size", unit: size, positive: true},
	"nusa.v1.Near.percentile":        {positive: true},
	"nusa.v1.Update.max_parallel":    {positive: true},
	"nusa.v1.Preference.selector":    {inline: map[string]string{"name": "name", "labels": "labels"}},
	"nusa.v1.Near.selector":          {inline: map[string]string{"name": "region", "labels": "labels"}},
	"nusa.v1.RegionDefinition.name":  {also: "region"},
}

// lists are messages with one repeated field that are written as a list.
var lists = map[protoreflect.FullName]protoreflect.Name{
	"nusa.v1.Colocation":   "groups",
	"nusa.v1.CommandCheck": "command",
}

const (
	durationName = "google.protobuf.Duration"
	structName   = "google.protobuf.Struct"
	locationName = "nusa.v1.Location"
)

// column is a field of a file.
type column struct {
	name string
	fd   protoreflect.FieldDescriptor
	// via is the field of the parent with the inline message of fd; nil for a field
	// that is not inline.
	via protoreflect.FieldDescriptor
	rule
}

// columns returns the fields of a message in the order of a file.
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

// enumName returns the name of an enumeration value in files: "batch" for
// JOB_TYPE_BATCH; "" for the unspecified value.
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

// join returns the path of a field or key below path. A key that is not a plain word is
// quoted.
func join(path, key string) string {
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
