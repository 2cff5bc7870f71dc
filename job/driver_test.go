package job

import (
	"reflect"
	"testing"

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
