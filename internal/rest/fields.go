package rest

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// notText is the fault of a value that protobuf does not take.
const notText = "is not text in UTF-8"

// maxFaults bounds the unknown fields that an error names.
const maxFaults = 20

// decode reads a JSON object into a message. Unknown fields are refused and named with the nearest
// known one. The faults have their lines.
func decode(data []byte, into proto.Message) []*nusav1.Problem {
	trees, err := doc.Read(data, true)
	if err != nil {
		return []*nusav1.Problem{syntax(err)}
	}
	if len(trees) != 1 || trees[0].Kind != doc.Map {
		return []*nusav1.Problem{{Line: 1, Column: 1, Message: "the body must be one JSON object"}}
	}
	c := &checker{}
	c.message(trees[0], into.ProtoReflect().Descriptor(), "")
	if len(c.faults) > 0 {
		return c.faults
	}
	if err := protojson.Unmarshal(data, into); err != nil {
		c.values(trees[0], into.ProtoReflect().Descriptor(), "")
		if len(c.faults) == 0 {
			c.faults = append(c.faults, positioned(err))
		}
	}
	return c.faults
}

// syntax is the fault of a text that is not JSON.
func syntax(err error) *nusav1.Problem {
	var at *doc.Error
	if errors.As(err, &at) {
		return &nusav1.Problem{Line: int32(at.Line), Column: int32(at.Column), Message: at.Message}
	}
	return &nusav1.Problem{Message: err.Error()}
}

var position = lazyregexp.New(`^\(line (\d+):(\d+)\): (.*)$`)

// positioned reads the position from an error of protojson, which has it as text only.
func positioned(err error) *nusav1.Problem {
	text := strings.TrimSpace(strings.TrimPrefix(err.Error(), "proto:"))
	text = strings.TrimLeft(text, "\u00a0 ")
	if m := position().FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1])
		column, _ := strconv.Atoi(m[2])
		return &nusav1.Problem{Line: int32(line), Column: int32(column), Message: m[3]}
	}
	return &nusav1.Problem{Message: text}
}

// checker collects the unknown fields of a tree.
type checker struct{ faults []*nusav1.Problem }

// message checks a tree that is read into a message.
func (c *checker) message(n *doc.Node, md protoreflect.MessageDescriptor, path string) {
	if n.Kind != doc.Map || strings.HasPrefix(string(md.FullName()), "google.protobuf.") {
		return // protojson says what is wrong
	}
	for _, e := range n.Entries {
		at := e.Key
		if path != "" {
			at = path + "." + e.Key
		}
		fd := fieldOf(md, e.Key)
		switch {
		case fd == nil && len(c.faults) < maxFaults:
			c.faults = append(c.faults, &nusav1.Problem{Field: at, Line: int32(e.Line), Column: int32(e.Column), Message: unknown(e.Key, md)})
		case fd == nil:
		case fd.IsMap():
			if value := fd.MapValue().Message(); value != nil {
				for _, item := range e.Value.Entries {
					c.message(item.Value, value, at+"."+item.Key)
				}
			}
		case fd.IsList() && fd.Message() != nil:
			for i, item := range e.Value.Items {
				c.message(item, fd.Message(), fmt.Sprintf("%s[%d]", at, i))
			}
		case fd.Message() != nil:
			c.message(e.Value, fd.Message(), at)
		}
	}
}

// fieldOf returns a field by its name in the proto or in JSON.
func fieldOf(md protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByName(protoreflect.Name(name)); fd != nil {
		return fd
	}
	return md.Fields().ByJSONName(name)
}

// unknown says that a message has no such field.
func unknown(name string, md protoreflect.MessageDescriptor) string {
	var known []string
	for i := range md.Fields().Len() {
		known = append(known, string(md.Fields().Get(i).Name()))
	}
	return unknownOf(name, known)
}

func unknownOf(name string, known []string) string {
	if near := suggest.Nearest(name, known); near != "" {
		return fmt.Sprintf("there is no such field: do you mean %s?", near)
	}
	if len(known) == 0 {
		return "there is no such field: there are none"
	}
	slices.Sort(known)
	return "there is no such field: the fields are " + suggest.List(known, 12)
}

var mapKey = lazyregexp.New(`^(.*)\[(.*)\]$`)

// checkQuery refuses parameters that the operation does not have.
func (o *operation) checkQuery(query url.Values) []*nusav1.Problem {
	var out []*nusav1.Problem
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fd, why := o.checkParameter(name)
		if why == "" {
			why = valueFault(fd, query[name])
		}
		if !utf8.ValidString(name) || slices.ContainsFunc(query[name], func(v string) bool { return !utf8.ValidString(v) }) {
			why = notText
		}
		if why != "" && len(out) < maxFaults {
			out = append(out, &nusav1.Problem{Field: strings.ToValidUTF8(name, "\ufffd"), Message: why})
		}
	}
	return out
}

// checkParameter returns the field of a parameter, or says why the operation has no such parameter.
func (o *operation) checkParameter(name string) (protoreflect.FieldDescriptor, string) {
	in := o.method.Input()
	if o.body == "*" {
		if fieldOf(in, name) != nil && !slices.Contains(o.params, name) {
			return nil, "the field belongs into the body"
		}
		return nil, "the operation has no parameters"
	}
	path, keyed := name, false
	if m := mapKey().FindStringSubmatch(name); m != nil {
		path, keyed = m[1], true
	}
	parts := strings.Split(path, ".")
	md := in
	var field protoreflect.FieldDescriptor
	for i, part := range parts {
		fd := fieldOf(md, part)
		if fd == nil {
			return nil, o.unknownParameter(part, md, i == 0)
		}
		parts[i] = string(fd.Name())
		if i == 0 && parts[0] == o.body {
			return nil, "the field belongs into the body"
		}
		last := i == len(parts)-1
		switch {
		case last && fd.IsMap() != keyed:
			return nil, fmt.Sprintf("write %s[KEY]=VALUE", part)
		case !last && (fd.Message() == nil || fd.IsMap() || fd.IsList()):
			return nil, fmt.Sprintf("%s has no fields", part)
		}
		md, field = fd.Message(), fd
	}
	if slices.Contains(o.params, strings.Join(parts, ".")) {
		return nil, "the field is in the path"
	}
	return field, ""
}

// unknownParameter names the nearest parameter.
func (o *operation) unknownParameter(name string, md protoreflect.MessageDescriptor, top bool) string {
	var known []string
	for i := range md.Fields().Len() {
		f := string(md.Fields().Get(i).Name())
		if !top || f != o.body && !slices.Contains(o.params, f) {
			known = append(known, f)
		}
	}
	return strings.Replace(unknownOf(name, known), "field", "parameter", 1)
}
