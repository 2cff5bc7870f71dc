package job

import (
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
)

// scalar reads a text, number, boolean or enumeration.
func (d *decoder) scalar(n *doc.Node, v *protoreflect.Value, fd protoreflect.FieldDescriptor, r rule, path string) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		if n.Kind != doc.String {
			d.fail(n.Line, n.Column, path, "must be text, not %s%s", n.Kind, quoteHint(n))
			return
		}
		*v = protoreflect.ValueOfString(n.Text)
	case protoreflect.BoolKind:
		if n.Kind != doc.Bool {
			d.fail(n.Line, n.Column, path, "must be true or false, not %s", n.Kind)
			return
		}
		*v = protoreflect.ValueOfBool(n.Text == "true")
	case protoreflect.EnumKind:
		d.enum(n, v, fd.Enum(), path)
	case protoreflect.DoubleKind:
		f, err := strconv.ParseFloat(n.Text, 64)
		if n.Kind != doc.Number || err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			d.fail(n.Line, n.Column, path, "must be a number, not %s", describe(n))
			return
		}
		*v = protoreflect.ValueOfFloat64(f)
	default:
		d.integer(n, v, fd, r, path)
	}
}

func quoteHint(n *doc.Node) string {
	if n.Kind == doc.Number || n.Kind == doc.Bool {
		return `: write "` + clip(n.Text) + `" in quotes`
	}
	return ""
}

// describe returns the text of a number, or the kind of another value.
func describe(n *doc.Node) string {
	if n.Kind == doc.Number {
		return clip(n.Text)
	}
	return n.Kind.String()
}

func (d *decoder) enum(n *doc.Node, v *protoreflect.Value, ed protoreflect.EnumDescriptor, path string) {
	known := enumNames(ed)
	text := strings.Join(known, ", ")
	if n.Kind != doc.String {
		d.fail(n.Line, n.Column, path, "must be one of %s, not %s", text, n.Kind)
		return
	}
	for i := range ed.Values().Len() {
		if name := enumName(ed.Values().Get(i)); name != "" && name == n.Text {
			*v = protoreflect.ValueOfEnum(ed.Values().Get(i).Number())
			return
		}
	}
	hint := ""
	if near := suggest.Nearest(n.Text, known); near != "" {
		hint = `, did you mean "` + near + `"?`
	}
	d.fail(n.Line, n.Column, path, "%q is not one of %s%s", clip(n.Text), text, hint)
}

func (d *decoder) integer(n *doc.Node, v *protoreflect.Value, fd protoreflect.FieldDescriptor, r rule, path string) {
	var i int64
	var err error
	switch {
	case r.unit != plain && n.Kind != doc.Number && n.Kind != doc.String:
		d.fail(n.Line, n.Column, path, "must be a quantity, not %s", n.Kind)
		return
	case r.unit == milli:
		i, err = ParseCPU(n.Text)
	case r.unit == size:
		i, err = ParseBytes(n.Text)
	case n.Kind == doc.String && len(n.Text) > 18 && strings.Trim(n.Text, "-0123456789") == "": // the YAML reader reads such a long number as text
		d.fail(n.Line, n.Column, path, "%s is too large", clip(n.Text))
		return
	case n.Kind != doc.Number:
		d.fail(n.Line, n.Column, path, "must be a whole number, not %s", n.Kind)
		return
	default:
		if i, err = strconv.ParseInt(n.Text, 10, 64); err != nil {
			d.fail(n.Line, n.Column, path, "%s is not a whole number, or too large", clip(n.Text))
			return
		}
	}
	switch {
	case err != nil:
		d.fail(n.Line, n.Column, path, "%v", err)
	case r.positive && i == 0:
		d.fail(n.Line, n.Column, path, "must be more than 0; leave it out for the default")
	case fd.Kind() == protoreflect.Int32Kind && (i > math.MaxInt32 || i < math.MinInt32):
		d.fail(n.Line, n.Column, path, "%s is too large", clip(n.Text))
	case fd.Kind() == protoreflect.Int32Kind:
		*v = protoreflect.ValueOfInt32(int32(i))
	default:
		*v = protoreflect.ValueOfInt64(i)
	}
}
