package job

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
	"github.com/nusa-scheduler/nusa/job/vars"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// Parse reads one job file, YAML or JSON, and validates it as Validate does. Variables of the file get
// their defaults. It does not fill in defaults of the job. The error is of type Errors. filename appears
// in the error.
func Parse(data []byte, filename string) (*nusav1.JobSpec, error) {
	docs, err := documents(data, filename)
	if err != nil {
		return nil, err
	}
	if len(docs) != 1 {
		return nil, Errors{{File: filename, Line: 1, Column: 1, Message: fmt.Sprintf("%d YAML documents: a job file has one job (regions: nusa region define FILE)", len(docs))}}
	}
	root, faults := resolve(docs[0], filename, nil)
	if err := faults.err(); err != nil {
		return nil, err
	}
	spec := &nusav1.JobSpec{}
	d := newDecoder(filename, root)
	d.message(unwrap(root, "job"), spec.ProtoReflect(), "")
	if len(d.errs) == 0 {
		d.errs = validate(spec)
		d.locate()
	}
	if err := d.errs.err(); err != nil {
		return nil, err
	}
	return spec, nil
}

// ParseJobs reads one or more jobs, separated by "---", as Parse reads one. values gives values of
// variables; nil: none. No job may be given twice.
func ParseJobs(data []byte, filename string, values *vars.Values) ([]*nusav1.JobSpec, error) {
	return parseAll(data, filename, kind[*nusav1.JobSpec]{
		resolve: func(n *doc.Node) (*doc.Node, Errors) { return resolve(n, filename, values) },
		key:     "job", fresh: func() *nusav1.JobSpec { return &nusav1.JobSpec{} },
		validate: validate,
		nameAt:   "name", name: func(s *nusav1.JobSpec) string {
			return cmp.Or(s.GetNamespace(), DefaultNamespace) + "/" + s.GetName()
		},
	})
}

// ParseRegions reads one or more region definitions, separated by "---". It validates each
// as ValidateRegion does. No region may be defined twice. The error is of type Errors.
func ParseRegions(data []byte, filename string) ([]*nusav1.RegionDefinition, error) {
	return parseAll(data, filename, kind[*nusav1.RegionDefinition]{
		key: "region", fresh: func() *nusav1.RegionDefinition { return &nusav1.RegionDefinition{} },
		validate: validateRegion,
		nameAt:   "name", name: (*nusav1.RegionDefinition).GetName,
	})
}

// ParseOrigins reads one or more origin records, separated by "---". It validates each as
// ValidateOrigins does. No domain may have two records. The records may name only regions
// from the list regions, unless the list is nil. The error is of type Errors.
func ParseOrigins(data []byte, filename string, regions []string) ([]*nusav1.OriginRecord, error) {
	return parseAll(data, filename, kind[*nusav1.OriginRecord]{
		key: "record", fresh: func() *nusav1.OriginRecord { return &nusav1.OriginRecord{} },
		validate: func(r *nusav1.OriginRecord) Errors {
			return append(validateOrigins(r), unknownOrigins(r, regions)...)
		},
		nameAt: "domain", name: func(r *nusav1.OriginRecord) string {
			domain, _ := origin.ParsePattern(r.GetDomain())
			return domain
		},
	})
}

// Locate adds positions to problems of one job of a file that ParseJobs accepts. at is the place of the
// job in the file, from 0. A problem that has a field but no position gets the position of the field, or of
// the nearest field around it.
func Locate(data []byte, filename string, at int, problems Errors) Errors {
	docs, err := documents(data, filename)
	if err != nil || at >= len(docs) {
		return problems
	}
	root, _ := vars.Resolve(docs[at], nil) // a variable without a value does not move the fields of the job
	d := newDecoder(filename, root)
	d.message(unwrap(root, "job"), (&nusav1.JobSpec{}).ProtoReflect(), "")
	var out Errors
	for _, p := range problems {
		if p.Line == 0 && p.Field != "" {
			d.errs = Errors{p}
			d.locate()
			p.File = filename
			if d.errs[0].Line != root.Line || d.errs[0].Column != root.Column {
				p = d.errs[0] // otherwise the file has no field around the problem's field
			}
		}
		out = append(out, p)
	}
	return out
}

// kind describes the files that hold messages of one type.
type kind[M proto.Message] struct {
	resolve  func(*doc.Node) (*doc.Node, Errors) // replaces variables; nil: these files have none
	key      string                              // the content of a document may be below this key
	fresh    func() M
	validate func(M) Errors
	// nameAt is the path of the field that identifies a document. name returns its value.
	nameAt string
	name   func(M) string
}

// parseAll reads a message from each document.
func parseAll[M proto.Message](data []byte, filename string, k kind[M]) ([]M, error) {
	docs, err := documents(data, filename)
	if err != nil {
		return nil, err
	}
	var out []M
	var errs Errors
	lines := map[string]int{} // by name
	for _, n := range docs {
		if k.resolve != nil {
			resolved, faults := k.resolve(n)
			n, errs = resolved, append(errs, faults...)
			if len(faults) > 0 {
				continue
			}
		}
		m := k.fresh()
		d := newDecoder(filename, n)
		d.message(unwrap(n, k.key), m.ProtoReflect(), "")
		if len(d.errs) == 0 {
			d.errs = k.validate(m)
			name := k.name(m)
			if before, twice := lines[name]; twice && name != "" {
				d.errs = append(d.errs, Problem{Field: k.nameAt, Message: fmt.Sprintf("%s is given twice in this file, first in line %d", clip(name), before)})
			} else {
				lines[name] = d.at[k.nameAt].line
			}
			d.locate()
		}
		errs = append(errs, d.errs...)
		out = append(out, m)
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// resolve replaces the variables of a document.
func resolve(n *doc.Node, filename string, values *vars.Values) (*doc.Node, Errors) {
	n, faults := vars.Resolve(n, values)
	var errs Errors
	for _, f := range faults {
		errs = append(errs, Problem{File: filename, Line: f.Line, Column: f.Column, Field: f.Field, Message: f.Message})
	}
	return n, errs
}

func documents(data []byte, filename string) ([]*doc.Node, error) {
	problem := Problem{File: filename, Line: 1, Column: 1}
	if len(data) > MaxSize {
		problem.Message = "more than " + FormatBytes(MaxSize) + ", the limit of a job"
		return nil, Errors{problem}
	}
	docs, err := doc.Read(data, strings.EqualFold(filepath.Ext(filename), ".json"))
	var at *doc.Error
	switch {
	case errors.As(err, &at):
		return nil, Errors{{File: filename, Line: at.Line, Column: at.Column, Message: at.Message}}
	case err != nil:
		problem.Message = err.Error()
		return nil, Errors{problem}
	case len(docs) == 0:
		problem.Message = "the file is empty"
		return nil, Errors{problem}
	}
	return docs, nil
}

// unwrap returns the content of a file, which may be below one key such as "job:".
func unwrap(n *doc.Node, key string) *doc.Node {
	if n.Kind == doc.Map && len(n.Entries) == 1 && n.Entries[0].Key == key && n.Entries[0].Value.Kind == doc.Map {
		return n.Entries[0].Value
	}
	return n
}

type position struct{ line, column int }

// decoder fills messages from a tree and records the position of each field.
type decoder struct {
	file string
	at   map[string]position
	errs Errors
}

func newDecoder(filename string, root *doc.Node) *decoder {
	return &decoder{file: filename, at: map[string]position{"": {root.Line, root.Column}}}
}

func (d *decoder) fail(line, column int, path, format string, args ...any) {
	d.errs = append(d.errs, Problem{File: d.file, Line: line, Column: column, Field: path, Message: fmt.Sprintf(format, args...)})
}

// locate sets the position of each problem to the position of its field, or of the nearest
// enclosing field.
func (d *decoder) locate() {
	for i := range d.errs {
		e := &d.errs[i]
		e.File = d.file
		for path := e.Field; ; {
			if p, ok := d.at[path]; ok {
				e.Line, e.Column = p.line, p.column
				break
			}
			path = path[:max(strings.LastIndexAny(path, ".["), 0)]
		}
	}
}

func (d *decoder) message(n *doc.Node, m protoreflect.Message, path string) {
	if n.Kind != doc.Map {
		d.fail(n.Line, n.Column, path, "must be a mapping%s, not %s", form(m.Descriptor().FullName()), n.Kind)
		return
	}
	cols := columns(m.Descriptor())
	given := map[string]string{} // the key in the file, by column
	for _, e := range n.Entries {
		p := join(path, e.Key)
		c, ok := find(cols, e.Key)
		if !ok {
			d.unknown(e, p, cols, m.Descriptor())
			continue
		}
		if before, twice := given[c.name]; twice {
			d.fail(e.Line, e.Column, p, "given twice, as %q and %q", before, e.Key)
			continue
		}
		given[c.name] = e.Key
		p = join(path, c.name)
		d.at[p] = position{e.Line, e.Column}
		d.field(e, m, c, p)
	}
	for _, c := range cols {
		if _, ok := given[c.name]; coordinate(c.fd) && !ok && len(d.errs) == 0 {
			d.fail(n.Line, n.Column, join(path, c.name), "is missing: a location has a latitude and a longitude, in degrees")
		}
	}
}

// coordinate reports whether a field is a latitude or a longitude. For such a field 0 is
// an ordinary value, so the file must state the value.
func coordinate(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.DoubleKind && fd.ContainingMessage().FullName() == locationName
}

func find(cols []column, key string) (column, bool) {
	for _, c := range cols {
		if c.name == key || c.also == key {
			return c, true
		}
	}
	return column{}, false
}

func (d *decoder) unknown(e doc.Entry, path string, cols []column, md protoreflect.MessageDescriptor) {
	if md.ParentFile() == (&nusav1.JobSpec{}).ProtoReflect().Descriptor().ParentFile() {
		if text := wording(e.Key); text != "" {
			d.fail(e.Line, e.Column, path, "unknown field: %s", text)
			return
		}
	}
	names := make([]string, len(cols))
	for i, c := range cols {
		names[i] = c.name
	}
	if near := suggest.Nearest(e.Key, names); near != "" {
		d.fail(e.Line, e.Column, path, "unknown field, did you mean %q?", near)
		return
	}
	d.fail(e.Line, e.Column, path, "unknown field, known here are %s", strings.Join(names, ", "))
}

// field sets one field of m. A structured field without a value stays absent, for example
// a list whose entries are commented out.
func (d *decoder) field(e doc.Entry, m protoreflect.Message, c column, path string) {
	target := m
	if c.via != nil {
		target = m.Mutable(c.via).Message()
	}
	if oneof := c.fd.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() && target.WhichOneof(oneof) != nil {
		d.fail(e.Line, e.Column, path, "only one of %s", oneofNames(oneof))
		return
	}
	structured := c.fd.IsList() || c.fd.IsMap() || c.fd.Message() != nil && c.fd.Message().FullName() != durationName
	switch {
	case e.Value.Kind == doc.Null && structured:
	case e.Value.Kind == doc.Null:
		d.fail(e.Line, e.Column, path, "has no value")
	case c.fd.IsMap():
		d.mapping(e.Value, target.Mutable(c.fd).Map(), c.fd, path)
	case c.fd.IsList():
		d.list(e.Value, target.Mutable(c.fd).List(), c.fd, path)
	default:
		v := target.NewField(c.fd)
		if d.value(e.Value, &v, c.fd, c.rule, path) {
			target.Set(c.fd, v)
		}
	}
}

func oneofNames(o protoreflect.OneofDescriptor) string {
	var names []string
	for i := range o.Fields().Len() {
		names = append(names, string(o.Fields().Get(i).Name()))
	}
	return strings.Join(names, ", ")
}

func (d *decoder) mapping(n *doc.Node, m protoreflect.Map, fd protoreflect.FieldDescriptor, path string) {
	if n.Kind != doc.Map {
		d.fail(n.Line, n.Column, path, "must be a mapping%s, not %s", form(fd.FullName()), n.Kind)
		return
	}
	value := fd.MapValue()
	for _, e := range n.Entries {
		p := join(path, e.Key)
		d.at[p] = position{e.Line, e.Column}
		v := m.NewValue()
		switch {
		case e.Value.Kind == doc.Null && value.Message() != nil:
			// For example, "http:" without a value is a port with all defaults.
		case e.Value.Kind == doc.Null:
			d.fail(e.Line, e.Column, p, "has no value")
			continue
		case value.Kind() == protoreflect.StringKind && (e.Value.Kind == doc.Number || e.Value.Kind == doc.Bool):
			// For example, PORT: 8080 in an environment means the text "8080".
			v = protoreflect.ValueOfString(e.Value.Text)
		case !d.value(e.Value, &v, value, rule{}, p):
			continue
		}
		m.Set(protoreflect.ValueOfString(e.Key).MapKey(), v)
	}
}

func (d *decoder) list(n *doc.Node, l protoreflect.List, fd protoreflect.FieldDescriptor, path string) {
	if n.Kind != doc.List {
		d.fail(n.Line, n.Column, path, "must be a list%s, not %s", form(fd.FullName()), n.Kind)
		return
	}
	for i, item := range n.Items {
		p := path + "[" + strconv.Itoa(i) + "]"
		d.at[p] = position{item.Line, item.Column}
		v := l.NewElement()
		if d.value(item, &v, fd, rule{}, p) {
			l.Append(v)
		}
	}
}

// value reads one value into *v. If it fails, it adds a problem and returns false.
func (d *decoder) value(n *doc.Node, v *protoreflect.Value, fd protoreflect.FieldDescriptor, r rule, path string) bool {
	before := len(d.errs)
	if md := fd.Message(); md != nil {
		switch md.FullName() {
		case durationName:
			d.duration(n, v, path)
		case structName:
			*v = protoreflect.ValueOfMessage(d.config(n, path).ProtoReflect())
		default:
			if name, ok := lists[md.FullName()]; ok {
				f := md.Fields().ByName(name)
				d.list(n, v.Message().Mutable(f).List(), f, path)
				break
			}
			d.message(n, v.Message(), path)
		}
		return len(d.errs) == before
	}
	d.scalar(n, v, fd, r, path)
	return len(d.errs) == before
}

func (d *decoder) duration(n *doc.Node, v *protoreflect.Value, path string) {
	if n.Kind != doc.String && n.Kind != doc.Number {
		d.fail(n.Line, n.Column, path, "must be a duration such as 30s, not %s", n.Kind)
		return
	}
	// ParseDuration accepts 0 without a unit.
	t, err := ParseDuration(n.Text)
	if err != nil {
		d.fail(n.Line, n.Column, path, "%v", err)
		return
	}
	*v = protoreflect.ValueOfMessage(durationpb.New(t).ProtoReflect())
}

// config reads the config of a task, whose fields the driver defines.
func (d *decoder) config(n *doc.Node, path string) *structpb.Struct {
	if n.Kind != doc.Map {
		d.fail(n.Line, n.Column, path, "must be a mapping%s, not %s", form(structName), n.Kind)
		return nil
	}
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for _, e := range n.Entries {
		p := join(path, e.Key)
		d.at[p] = position{e.Line, e.Column}
		out.Fields[e.Key] = d.free(e.Value, p)
	}
	return out
}

func (d *decoder) free(n *doc.Node, path string) *structpb.Value {
	switch n.Kind {
	case doc.Bool:
		return structpb.NewBoolValue(n.Text == "true")
	case doc.String:
		return structpb.NewStringValue(n.Text)
	case doc.Number:
		f, err := strconv.ParseFloat(n.Text, 64)
		if err != nil || f != f || f-f != 0 {
			d.fail(n.Line, n.Column, path, "%s is not a finite number", clip(n.Text))
		} else if f > 1<<53 || f < -1<<53 {
			d.fail(n.Line, n.Column, path, "%s is not kept exactly: quote it", clip(n.Text))
		}
		return structpb.NewNumberValue(f)
	case doc.List:
		l := &structpb.ListValue{}
		for i, item := range n.Items {
			p := path + "[" + strconv.Itoa(i) + "]"
			d.at[p] = position{item.Line, item.Column}
			l.Values = append(l.Values, d.free(item, p))
		}
		return structpb.NewListValue(l)
	case doc.Map:
		return structpb.NewStructValue(d.config(n, path))
	}
	return structpb.NewNullValue()
}
