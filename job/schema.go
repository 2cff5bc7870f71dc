package job

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The file form of a message is its proto form, with these differences:
// enumerations are written as their lower-case value without the prefix,
// durations as 1m30s, and what stands in rules and lists below.

// unit is how a whole number is written.
type unit int

const (
	plain unit = iota
	milli      // 500m, 0.5
	size       // 256MiB
)

// rule is what is special about the file form of one field.
type rule struct {
	// name in files, when it is not the proto's.
	name string
	// also is another name that is read.
	also string
	unit unit
	// inline fields of the message stand in the parent itself, under these
	// names.
	inline map[string]string
	// positive refuses a written 0, which the message could not tell from
	// absent.
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

// lists are messages of one repeated field that are written as that list.
var lists = map[protoreflect.FullName]protoreflect.Name{
	"nusa.v1.Colocation":   "groups",
	"nusa.v1.CommandCheck": "command",
}

const (
	durationName = "google.protobuf.Duration"
	structName   = "google.protobuf.Struct"
	locationName = "nusa.v1.Location"
)

// column is a field as it stands in a file.
type column struct {
	name string
	fd   protoreflect.FieldDescriptor
	// via is the field of the parent that holds the message fd is of, for
	// inline messages; else nil.
	via protoreflect.FieldDescriptor
	rule
}

// columns are the fields of a message in the order of a file.
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

// enumName is an enumeration's value as files write it: JOB_TYPE_BATCH is
// "batch"; the unspecified value has none.
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

// join is the path of a field or key below path: keys that are not plain words
// are quoted.
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
