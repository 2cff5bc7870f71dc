package drivertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Configs checks that a server and a driver agree about the form of a config: a job that a server accepts
// has no config that the driver refuses for its form, and the first problem is the same. read reads the
// config of a task as the driver does. The configs come from the driver's schema, with wrong types, values
// and names among them.
func Configs(t *testing.T, name string, read func(map[string]any) error) {
	form, ok := config.Of(name)
	if !ok {
		t.Fatalf("no schema for %s", name)
	}
	const seed = 19
	r := rand.New(rand.NewPCG(seed, 0))
	refused, accepted := 0, 0
	for range 2000 {
		values := anyConfig(r, form)
		spec, err := structpb.NewStruct(values)
		if err != nil {
			t.Fatal(err)
		}
		values = spec.AsMap()
		problem := submitProblem(name, spec)
		err = read(values)
		switch {
		case problem == "" && err != nil:
			t.Fatalf("%v: the server accepts it, the driver says: %v", values, err)
		case form.Error(values, config.Filled) != nil && (err == nil || !strings.HasSuffix(err.Error(), problem)):
			t.Fatalf("%v: the server says %q, the driver: %v", values, problem, err)
		case problem == "":
			accepted++
		default:
			refused++
		}
	}
	if refused < 100 || accepted < 20 {
		t.Errorf("%d refused, %d accepted: the configs prove little", refused, accepted)
	}
}

// submitProblem returns the first problem of a config at a submit, such as "config.image: is missing".
func submitProblem(driver string, values *structpb.Struct) string {
	spec := &nusav1.JobSpec{Name: "j", Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{
		"g": {Tasks: map[string]*nusav1.Task{"t": {Driver: driver, Config: values}}},
	}}
	job.Default(spec)
	var wrong job.Errors
	if !errors.As(job.Validate(spec), &wrong) {
		return ""
	}
	for _, p := range wrong {
		if _, field, is := strings.Cut(p.Field, "tasks.t.config"); is {
			return "config" + field + ": " + p.Message
		}
	}
	return ""
}

// anyConfig returns a config with some of the fields of a schema. Most values are right.
func anyConfig(r *rand.Rand, form config.Schema) map[string]any {
	out := map[string]any{}
	for _, f := range form {
		if !f.Required && r.IntN(3) > 0 || r.IntN(20) == 0 {
			continue
		}
		out[f.Name] = anyValue(r, f)
		if r.IntN(12) == 0 {
			out[f.Name] = wrongValues[r.IntN(len(wrongValues))]
		}
	}
	if r.IntN(20) == 0 {
		out[fmt.Sprint("imag", r.IntN(3))] = "x"
	}
	return out
}

// wrongValues are values of other types, and texts that few fields take.
var wrongValues = []any{nil, true, 0.0, -1.0, 1.5, 1e9, "", "x", "/x", "10m", []any{}, []any{"a"}, []any{1.0}, []any{"a\x00"}, map[string]any{}, map[string]any{"a": "b"}, map[string]any{"nusa.a": "b"}, map[string]any{"nofile": "9:1"}}

func anyValue(r *rand.Rand, f config.Field) any {
	switch f.Kind {
	case config.Text:
		switch {
		case len(f.Values) > 0:
			return f.Values[r.IntN(len(f.Values))]
		case f.Absolute:
			return "/srv"
		}
		return []any{"x", "y/z", "10m"}[r.IntN(3)]
	case config.Bool:
		return r.IntN(2) == 0
	case config.Integer, config.Number:
		return max(f.Min, 1)
	case config.Texts:
		return []any{"a", "b"}
	case config.TextMap, config.ScalarMap:
		return map[string]any{"limits.cpu": "1"}
	}
	return map[string]any{}
}
