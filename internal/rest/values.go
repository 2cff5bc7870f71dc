package rest

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nusa-scheduler/nusa/internal/suggest"
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
	if prefix := commonPrefix(known); !strings.HasPrefix(value, prefix) {
		value = prefix + value
	}
	if near := suggest.Nearest(strings.ToUpper(value), lower(known)); near != "" {
		return "do you mean " + strings.ToUpper(near) + "?"
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
