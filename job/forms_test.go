package job

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// shape is a mapping or a list of a job file, and the function that reads an example of
// it.
type shape struct {
	name protoreflect.FullName
	read func(d *decoder, n *doc.Node)
}

// shapes returns every shape of a job file.
func shapes() []shape {
	var out []shape
	seen := map[protoreflect.FullName]bool{}
	add := func(name protoreflect.FullName, read func(*decoder, *doc.Node)) bool {
		fresh := !seen[name]
		seen[name] = true
		if fresh {
			out = append(out, shape{name, read})
		}
		return fresh
	}
	var walk func(m protoreflect.Message)
	walk = func(m protoreflect.Message) {
		md := m.Descriptor()
		if md.FullName() == durationName {
			return
		}
		if md.FullName() == structName {
			add(structName, func(d *decoder, n *doc.Node) { d.config(n, "") })
			return
		}
		if field, list := lists[md.FullName()]; list {
			fd := md.Fields().ByName(field)
			add(md.FullName(), func(d *decoder, n *doc.Node) { d.list(n, m.New().Mutable(fd).List(), fd, "") })
			return
		}
		if !add(md.FullName(), func(d *decoder, n *doc.Node) { d.message(n, m.New(), "") }) {
			return
		}
		for _, c := range columns(md) {
			at := m
			if c.via != nil {
				at = m.New().Mutable(c.via).Message()
			}
			switch {
			case c.fd.IsMap():
				add(c.fd.FullName(), func(d *decoder, n *doc.Node) { d.mapping(n, at.New().Mutable(c.fd).Map(), c.fd, "") })
				if c.fd.MapValue().Message() != nil {
					walk(at.New().Mutable(c.fd).Map().NewValue().Message())
				}
			case c.fd.IsList():
				add(c.fd.FullName(), func(d *decoder, n *doc.Node) { d.list(n, at.New().Mutable(c.fd).List(), c.fd, "") })
				if c.fd.Message() != nil {
					walk(at.New().Mutable(c.fd).List().NewElement().Message())
				}
			case c.fd.Message() != nil:
				walk(at.New().Mutable(c.fd).Message())
			}
		}
	}
	walk((&nusav1.JobSpec{}).ProtoReflect())
	return out
}

// TestEveryShapeHasAValidExample: every mapping and list of a job file has an example
// that can be read.
func TestEveryShapeHasAValidExample(t *testing.T) {
	known := map[protoreflect.FullName]bool{}
	for _, s := range shapes() {
		known[s.name] = true
		text := forms[s.name]
		if text == "" {
			// For a message that is written as a list, the example has the name of the
			// message, because the name of its only field is not in files.
			t.Errorf("%s has no form", s.name)
			continue
		}
		docs, err := doc.Read([]byte(text), false)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		d := newDecoder("form", docs[0])
		if s.read(d, docs[0]); len(d.errs) > 0 {
			t.Errorf("%s: %s: %v", s.name, text, d.errs)
		}
	}
	for name := range forms {
		if !known[name] && name != "nusa.v1.CommandCheck.command" {
			t.Errorf("%s is nothing of a job file", name)
		}
	}
}

// TestHintsNameExistingFields: the hints for fields of other schedulers name fields
// that exist.
func TestHintsNameExistingFields(t *testing.T) {
	all := paths((&nusav1.JobSpec{}).ProtoReflect().Descriptor(), "", nil)
	if !slices.Contains(all, "groups.NAME.tasks.NAME.resources.gpu.model") || !slices.Contains(all, "regions.near[].location.latitude") {
		t.Errorf("the paths are %v", all)
	}
	for key, text := range wordings {
		if slices.Contains(all, key) || slices.Contains(all, "groups.NAME."+key) {
			t.Errorf("%s is a field", key)
		}
		field, _, _ := strings.Cut(text, ":")
		field, _, _ = strings.Cut(field, ",")
		if !slices.ContainsFunc(all, func(p string) bool { return p == field || strings.HasSuffix(p, "."+field) }) && !strings.Contains(text, "not supported yet") {
			t.Errorf("%s: %q begins with no field", key, text)
		}
	}
	for key, want := range map[string]string{
		"nodeSelector": wordings["node_selector"], "anti-affinity": wordings["anti_affinity"],
		"colocate": "it is a field of the job itself", "cpu": "it is a field of groups.NAME.tasks.NAME.resources",
		"ports": "it is a field of groups.NAME", "xyzzy": "", "name": "",
	} {
		if got := wording(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestLocateAddsPositions: problems from elsewhere get positions in the file.
func TestLocateAddsPositions(t *testing.T) {
	file := []byte("job:\n  name: a\n  groups:\n    web:\n      tasks:\n        t: {driver: dokcer, config: {image: x}}\n")
	spec, err := Parse(file, "a.yaml")
	if err != nil {
		t.Fatal(err)
	}
	Default(spec)
	got := Locate(file, "a.yaml", 0, append(Unsupported(spec), Problem{Field: "groups.web.update.canary", Message: "no"}, Problem{Field: "regions.divide", Message: "no"}, Problem{Message: "the queue is full"}))
	want := "a.yaml:6:13: groups.web.tasks.t.driver: there is no driver \"dokcer\", did you mean \"docker\"?\n" +
		"a.yaml:4:5: groups.web.update.canary: no\na.yaml: regions.divide: no\nthe queue is full"
	if got.Error() != want {
		t.Errorf("got\n%s\nwant\n%s", got.Error(), want)
	}
}
