package job

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Format is a syntax of job files.
type Format int

const (
	YAML Format = iota
	JSON
)

// Marshal returns a spec as a job file, which Parse reads back to an equal spec. It fails
// for a spec that a file cannot hold, for example with text that is not UTF-8.
func Marshal(spec *nusav1.JobSpec, format Format) ([]byte, error) {
	n, err := tree(spec.ProtoReflect())
	if err != nil {
		return nil, err
	}
	if format == JSON {
		return n.JSON(), nil
	}
	return n.YAML(), nil
}

// tree returns a message in the form of a file: the present fields in the order of the
// proto, with sorted map keys.
func tree(m protoreflect.Message) (*doc.Node, error) {
	out := &doc.Node{Kind: doc.Map}
	for _, c := range columns(m.Descriptor()) {
		from := m
		if c.via != nil {
			from = m.Get(c.via).Message()
		}
		if !from.Has(c.fd) && !coordinate(c.fd) {
			continue
		}
		n, err := fieldTree(from.Get(c.fd), c.fd, c.rule)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		out.Add(c.name, n)
	}
	return out, nil
}

func fieldTree(v protoreflect.Value, fd protoreflect.FieldDescriptor, r rule) (*doc.Node, error) {
	switch {
	case fd.IsMap():
		out := &doc.Node{Kind: doc.Map}
		values := map[string]protoreflect.Value{}
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			values[k.String()] = v
			return true
		})
		for _, k := range slices.Sorted(maps.Keys(values)) {
			n, err := valueTree(values[k], fd.MapValue(), rule{})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			out.Add(k, n)
		}
		return out, nil
	case fd.IsList():
		out := &doc.Node{Kind: doc.List}
		for i := range v.List().Len() {
			n, err := valueTree(v.List().Get(i), fd, rule{})
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			out.Items = append(out.Items, n)
		}
		return out, nil
	}
	return valueTree(v, fd, r)
}

func valueTree(v protoreflect.Value, fd protoreflect.FieldDescriptor, r rule) (*doc.Node, error) {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return messageTree(v.Message())
	case protoreflect.StringKind:
		return &doc.Node{Kind: doc.String, Text: v.String()}, nil
	case protoreflect.BoolKind:
		return &doc.Node{Kind: doc.Bool, Text: strconv.FormatBool(v.Bool())}, nil
	case protoreflect.DoubleKind:
		return &doc.Node{Kind: doc.Number, Text: formatFloat(v.Float())}, nil
	case protoreflect.EnumKind:
		name := enumName(fd.Enum().Values().ByNumber(v.Enum()))
		if name == "" {
			return nil, fmt.Errorf("value %d is not known", v.Enum())
		}
		return &doc.Node{Kind: doc.String, Text: name}, nil
	}
	text := strconv.FormatInt(v.Int(), 10)
	switch {
	case r.unit == milli && v.Int() >= 0:
		text = FormatCPU(v.Int())
	case r.unit == size && v.Int() >= 0:
		text = FormatBytes(v.Int())
	}
	kind := doc.Number
	if _, err := strconv.ParseInt(text, 10, 64); err != nil {
		kind = doc.String
	}
	return &doc.Node{Kind: kind, Text: text}, nil
}

func messageTree(m protoreflect.Message) (*doc.Node, error) {
	switch name := m.Descriptor().FullName(); name {
	case durationName:
		d, ok := goDuration(m.Interface().(*durationpb.Duration))
		if !ok {
			return nil, fmt.Errorf("the duration is out of range")
		}
		return &doc.Node{Kind: doc.String, Text: FormatDuration(d)}, nil
	case structName:
		return freeTree(structpb.NewStructValue(m.Interface().(*structpb.Struct))), nil
	default:
		if field, ok := lists[name]; ok {
			fd := m.Descriptor().Fields().ByName(field)
			return fieldTree(m.Get(fd), fd, rule{})
		}
	}
	return tree(m)
}

func freeTree(v *structpb.Value) *doc.Node {
	switch k := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return &doc.Node{Kind: doc.Bool, Text: strconv.FormatBool(k.BoolValue)}
	case *structpb.Value_StringValue:
		return &doc.Node{Kind: doc.String, Text: k.StringValue}
	case *structpb.Value_NumberValue:
		return &doc.Node{Kind: doc.Number, Text: formatFloat(k.NumberValue)}
	case *structpb.Value_ListValue:
		out := &doc.Node{Kind: doc.List}
		for _, item := range k.ListValue.GetValues() {
			out.Items = append(out.Items, freeTree(item))
		}
		return out
	case *structpb.Value_StructValue:
		out := &doc.Node{Kind: doc.Map}
		fields := k.StructValue.GetFields()
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			out.Add(key, freeTree(fields[key]))
		}
		return out
	}
	return &doc.Node{Kind: doc.Null}
}

// formatFloat returns the shortest text with the same value. Very large and very small
// numbers have an exponent.
func formatFloat(f float64) string {
	if f == 0 || f < 1e15 && f > 1e-6 || f > -1e15 && f < -1e-6 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strconv.FormatFloat(f, 'e', -1, 64)
}
