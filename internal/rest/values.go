package rest

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// valueFault says why a parameter cannot have these values, or returns "". grpc-gateway decides what a
// value may be, but its errors are those of Go's parsers.
func valueFault(fd protoreflect.FieldDescriptor, values []string) string {
	if fd.IsMap() {
		fd = fd.MapValue()
	} else if !fd.IsList() && len(values) > 1 {
		return fmt.Sprintf("is given %d times: give it once", len(values))
	}
	for _, v := range values {
		if !takes(fd, v) {
			return clip(v) + " is wrong: " + kindText(fd, v)
		}
	}
	return ""
}

// takes reports whether grpc-gateway can read a value of a field.
func takes(fd protoreflect.FieldDescriptor, value string) bool {
	owner, err := protoregistry.GlobalTypes.FindMessageByName(fd.ContainingMessage().FullName())
	if err != nil || fd.ContainingMessage().IsMapEntry() {
		return true // grpc-gateway says what is wrong
	}
	query := url.Values{string(fd.Name()): {value}}
	return runtime.PopulateQueryParameters(owner.New().Interface(), query, utilities.NewDoubleArray(nil)) == nil
}

// values collects the wrong values of a tree that protojson cannot read into a message, because an error
// of protojson has neither the path of the field nor what it takes.
func (c *checker) values(n *doc.Node, md protoreflect.MessageDescriptor, path string) {
	for _, e := range n.Entries {
		fd := fieldOf(md, e.Key)
		if fd == nil || e.Value.Kind == doc.Null {
			continue
		}
		at := e.Key
		if path != "" {
			at = path + "." + e.Key
		}
		switch {
		case fd.IsMap() && e.Value.Kind == doc.Map:
			for _, item := range e.Value.Entries {
				c.value(item.Value, fd.MapValue(), at+"."+item.Key)
			}
		case fd.IsList() && e.Value.Kind == doc.List:
			for i, item := range e.Value.Items {
				c.value(item, fd, fmt.Sprintf("%s[%d]", at, i))
			}
		case fd.IsMap():
			c.wrong(e.Value, at, "it must be an object")
		case fd.IsList():
			c.wrong(e.Value, at, "it must be a list")
		default:
			c.value(e.Value, fd, at)
		}
	}
}

// value checks one value: that of a field, or an element of a list or a map.
func (c *checker) value(v *doc.Node, fd protoreflect.FieldDescriptor, at string) {
	ours := fd.Message() != nil && !strings.HasPrefix(string(fd.Message().FullName()), "google.protobuf.")
	switch {
	case ours && v.Kind == doc.Map:
		c.values(v, fd.Message(), at)
	case ours:
		c.wrong(v, at, "it must be an object")
	case !readable(v, fd):
		c.wrong(v, at, kindText(fd, v.Text))
	}
}

// maxShown bounds how much of a wrong value an error shows, in bytes.
const maxShown = 80

// wrong adds a fault.
func (c *checker) wrong(v *doc.Node, at, text string) {
	if len(c.faults) < maxFaults {
		value := string(v.Compact())
		if len(value) > maxShown {
			value = strings.ToValidUTF8(value[:maxShown], "") + "…"
		}
		c.faults = append(c.faults, &nusav1.Problem{Field: at, Line: int32(v.Line), Column: int32(v.Column), Message: value + " is wrong: " + text})
	}
}

// readable reports whether protojson can read a value into a field.
func readable(v *doc.Node, fd protoreflect.FieldDescriptor) bool {
	m := dynamicpb.NewMessage(fd.ContainingMessage())
	value := v.Compact()
	switch {
	case fd.ContainingMessage().IsMapEntry():
		return true // an entry of a map has no JSON of its own
	case fd.IsList():
		value = slices.Concat([]byte("["), value, []byte("]"))
	}
	return protojson.Unmarshal(slices.Concat([]byte(`{"`+fd.JSONName()+`":`), value, []byte("}")), m) == nil
}

// kindText says which values a field takes.
func kindText(fd protoreflect.FieldDescriptor, value string) string {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return "it must be true or false"
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return "it must be a whole number, -2147483648..2147483647"
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return "it must be a whole number, 0..4294967295"
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return "it must be a whole number of 64 bits"
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return "it must be a whole number of 64 bits, 0 or more"
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "it must be a number"
	case protoreflect.BytesKind:
		return "it must be base64"
	case protoreflect.EnumKind:
		return enumText(fd.Enum(), value)
	case protoreflect.MessageKind:
		switch fd.Message().FullName() {
		case "google.protobuf.Duration":
			return "it must be a number of seconds such as 90s or 0.5s"
		case "google.protobuf.Timestamp":
			return "it must be a time such as 2026-01-02T03:04:05Z"
		}
		return "write its fields as NAME.FIELD=VALUE"
	}
	return "it must be text"
}

// enumText names the values of an enumeration, or the nearest one.
func enumText(ed protoreflect.EnumDescriptor, value string) string {
	var known []string
	for i := range ed.Values().Len() {
		known = append(known, string(ed.Values().Get(i).Name()))
	}
	prefix := commonPrefix(known)
	known = slices.DeleteFunc(known, func(name string) bool { return strings.HasSuffix(name, "_UNSPECIFIED") })
	words := slices.Clone(known)
	for i := range words { // the prefix would make all of them look alike
		words[i] = strings.TrimPrefix(words[i], prefix)
	}
	if near := suggest.Nearest(strings.TrimPrefix(strings.ToUpper(value), prefix), lower(words)); near != "" {
		return "do you mean " + prefix + strings.ToUpper(near) + "?"
	}
	return "it must be one of " + suggest.List(known, 12)
}

// lower returns the texts in lower case, because suggest.Nearest looks for a name in lower case.
func lower(all []string) []string {
	out := slices.Clone(all)
	for i := range out {
		out[i] = strings.ToLower(out[i])
	}
	return out
}

// commonPrefix returns the longest prefix of all names that ends with "_".
func commonPrefix(names []string) string {
	prefix := names[0]
	for _, n := range names {
		for !strings.HasPrefix(n, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	return prefix[:strings.LastIndexByte(prefix, '_')+1]
}
