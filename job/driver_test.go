package job

import (
	"fmt"
	"iter"
	"reflect"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestConfigSchemaOnTheWire: each field and each kind survives the way to the region. A kind of a later
// version allows every value.
func TestConfigSchemaOnTheWire(t *testing.T) {
	form := config.Schema{
		{Name: "a", Kind: config.Text, Required: true, Values: []string{"x"}, Absolute: true, Secret: true, Help: "h"},
		{Name: "b", Kind: config.Integer, Min: -1, Max: 2.5},
	}
	for kind := range nusav1.ConfigType_name {
		form = append(form, config.Field{Name: "kind", Kind: config.Kind(kind)})
	}
	if got := ConfigSchemaFromProto(ConfigSchemaToProto(form)); !reflect.DeepEqual(got, form) {
		t.Errorf("%+v, want %+v", got, form)
	}
	if int(config.Map) != len(nusav1.ConfigType_name)-1 {
		t.Errorf("%d types, the last kind is %d", len(nusav1.ConfigType_name), config.Map)
	}
	later := ConfigSchemaFromProto(&nusav1.ConfigSchema{Fields: []*nusav1.ConfigField{{Name: "a", Type: 99, Max: 3, Values: []string{"x"}}}})
	if err := later.Error(map[string]any{"a": []any{7}}, config.Filled); err != nil {
		t.Error(err)
	}
	if ConfigSchemaFromProto(nil) != nil || ConfigSchemaToProto(nil) != nil || ConfigSchemaFromProto(&nusav1.ConfigSchema{}) == nil {
		t.Error("no schema and an empty one are the same")
	}
}

// TestFormsAreReadOnce: however many tasks a spec has, each node's form is read once, and only as far as needed.
func TestFormsAreReadOnce(t *testing.T) {
	tasks := map[string]*nusav1.Task{}
	for i := range 16 {
		tasks[fmt.Sprint("t", i)] = &nusav1.Task{Driver: "vm", Config: &structpb.Struct{Fields: map[string]*structpb.Value{"new": structpb.NewBoolValue(true)}}}
	}
	spec := &nusav1.JobSpec{Groups: map[string]*nusav1.Group{"g": {Tasks: tasks}}}
	read := 0
	forms := func(list ...config.Schema) func(string) iter.Seq[ConfigForm] {
		return func(string) iter.Seq[ConfigForm] {
			return func(yield func(ConfigForm) bool) {
				for i, s := range list {
					if read++; !yield(ConfigForm{Node: fmt.Sprint("n", i), Schema: s}) {
						return
					}
				}
			}
		}
	}
	older, newer := config.Schema{{Name: "old"}}, config.Schema{{Name: "new", Kind: config.Bool}}
	many := make([]config.Schema, maxForms)
	for i := range many {
		many[i] = config.Schema{{Name: fmt.Sprint("x", i)}}
	}
	for i, c := range []struct {
		forms          []config.Schema
		problems, read int
	}{
		{nil, 0, 0},
		{[]config.Schema{older, older, older}, 16, 3},
		{[]config.Schema{older, newer, older}, 0, 2},
		{[]config.Schema{older, nil, older}, 0, 2},
		{many[1:], 16, maxForms - 1},
		{many, 0, maxForms},
	} {
		read = 0
		wrong := ConfigProblems(spec, forms(c.forms...))
		if len(wrong) != c.problems || read != c.read {
			t.Errorf("%d: %d problems, %d forms read, want %d and %d", i, len(wrong), read, c.problems, c.read)
		}
		if len(wrong) > 0 && wrong[0].Message != `unknown field, known here are `+c.forms[0][0].Name+` (driver vm on node n0)` {
			t.Error(wrong[0].Message)
		}
	}
}
