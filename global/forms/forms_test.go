package forms

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func formWith(fields ...string) *nusav1.ConfigSchema {
	out := &nusav1.ConfigSchema{}
	for _, name := range fields {
		out.Fields = append(out.Fields, &nusav1.ConfigField{Name: name, Type: nusav1.ConfigType_CONFIG_TYPE_TEXT})
	}
	return out
}

func driverOf(name string, forms ...*nusav1.ConfigSchema) *nusav1.DriverForm {
	return &nusav1.DriverForm{Driver: name, Forms: forms}
}

// refuses returns the problems if a region refuses a task.
func refuses(b *Book, name string, t *Task) job.Errors {
	kinds, any := b.Kinds(t.Driver, []string{name})
	if any || len(kinds) == 0 {
		return nil
	}
	return kinds[0].Refuses(t)
}

// TestRefuses: a region refuses a config if each form of the driver does.
func TestRefuses(t *testing.T) {
	many := make([]*nusav1.ConfigSchema, MaxForms+1)
	for i := range many {
		many[i] = formWith(fmt.Sprint("x", i))
	}
	large := make([]*nusav1.ConfigSchema, 0, MaxForms)
	for i := range MaxForms {
		f := formWith()
		for k := range 64 {
			f.Fields = append(f.Fields, &nusav1.ConfigField{Name: fmt.Sprintf("f%d_%d", i, k), Help: strings.Repeat("h", 128)})
		}
		large = append(large, f)
	}
	for name, c := range map[string]struct {
		driver *nusav1.DriverForm
		want   string
	}{
		"no form":    {driverOf("vm"), ""},
		"any":        {&nusav1.DriverForm{Driver: "vm", Any: true, Forms: []*nusav1.ConfigSchema{formWith("other")}}, ""},
		"accepts":    {driverOf("vm", formWith("image")), ""},
		"one does":   {driverOf("vm", formWith("other"), formWith("image")), ""},
		"refuses":    {driverOf("vm", formWith("imgae")), `groups.web.tasks.main.config.image: unknown field, did you mean "imgae"?`},
		"both do":    {driverOf("vm", formWith("x"), formWith("y")), "groups.web.tasks.main.config.image: unknown field, known here are x"},
		"no fields":  {driverOf("vm", formWith()), "groups.web.tasks.main.config.image: unknown field: the driver has no settings"},
		"too many":   {driverOf("vm", many...), ""},
		"too large":  {driverOf("vm", large...), ""},
		"not sound":  {driverOf("vm", formWith("UPPER")), ""},
		"of another": {driverOf("other", formWith("x")), ""},
	} {
		var b Book
		task := Task{Group: "web", Name: "main", Driver: "vm", Config: map[string]any{"image": "x"}}
		b.Set("oslo", &nusav1.DriverForms{Drivers: []*nusav1.DriverForm{c.driver}})
		problems := refuses(&b, "oslo", &task)
		if got := problems.Error(); len(problems) == 0 && c.want != "" || len(problems) > 0 && got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if len(refuses(&b, "rome", &task)) > 0 || b.Known("rome") {
			t.Errorf("%s: a region that has sent nothing", name)
		}
	}
}

// TestBook: the same forms change nothing, regions share equal forms, and a removed region is forgotten.
func TestBook(t *testing.T) {
	var b Book
	sent := func() *nusav1.DriverForms {
		return &nusav1.DriverForms{Drivers: []*nusav1.DriverForm{driverOf("vm", formWith("image"), formWith("kernel"))}}
	}
	if !b.Set("oslo", sent()) || b.Set("oslo", sent()) || !b.Set("rome", sent()) || b.Version() != 2 {
		t.Errorf("version %d", b.Version())
	}
	if b.regions["oslo"].drivers["vm"].forms[1] != b.regions["rome"].drivers["vm"].forms[1] {
		t.Error("two regions have a copy each")
	}
	if b.Hash("oslo") != job.FormsHash(sent()) || b.Hash("oslo") == job.FormsHash(&nusav1.DriverForms{}) || b.Hash("none") != 0 || job.FormsHash(&nusav1.DriverForms{}) == 0 {
		t.Error("hashes")
	}
	b.Remove("oslo")
	b.Remove("oslo")
	if b.Known("oslo") || b.Hash("oslo") != 0 || b.Version() != 3 {
		t.Error("a removed region is still known")
	}
}

func TestTasks(t *testing.T) {
	config, _ := structpb.NewStruct(map[string]any{"n": 1})
	spec := &nusav1.JobSpec{Groups: map[string]*nusav1.Group{
		"b": {Tasks: map[string]*nusav1.Task{"z": {Driver: "vm", Config: config}, "a": {Driver: "script"}, "p": {Driver: "process"}}},
		"a": {Tasks: map[string]*nusav1.Task{"d": {Driver: "docker"}}},
	}}
	got := Tasks(spec)
	if len(got) != 2 || got[0].Path() != "groups.b.tasks.a.config" || got[1].Path() != "groups.b.tasks.z.config" || got[1].Config["n"] != 1.0 {
		t.Errorf("%+v", got)
	}
}

// TestAll: the tasks of steps have the paths and the regions of their steps.
func TestAll(t *testing.T) {
	groups := func(driver string) map[string]*nusav1.Group {
		return map[string]*nusav1.Group{"g": {Tasks: map[string]*nusav1.Task{"t": {Driver: driver}}}}
	}
	allow := func(name string) *nusav1.RegionsSpec {
		return &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: name}}}
	}
	spec := &nusav1.JobSpec{Regions: allow("oslo"), Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{
		"a": {Groups: groups("vm"), Regions: allow("rome")},
		"b": {Groups: groups("process")},
		"c": {Inline: &nusav1.Workflow{Steps: map[string]*nusav1.Step{"d": {Groups: groups("vm")}}}},
	}}}
	got := ""
	for in, task := range All(spec) {
		got += task.Path() + " in " + in.GetRegions().GetAllow()[0].GetName() + "\n"
	}
	const want = "workflow.steps.a.groups.g.tasks.t.config in rome\nworkflow.steps.c.inline.steps.d.groups.g.tasks.t.config in oslo\n"
	if got != want || !Any(spec) || Any(&nusav1.JobSpec{Groups: groups("docker")}) || !Any(&nusav1.JobSpec{Groups: groups("vm")}) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestManyDrivers: a region with more drivers than its list has may have each driver, and accept any config for it.
func TestManyDrivers(t *testing.T) {
	for name, c := range map[string]struct {
		drivers   int
		truncated bool
		may       bool
	}{"all": {MaxDrivers - 1, false, false}, "cut": {MaxDrivers - 1, true, true}, "full": {MaxDrivers, false, true}, "too many": {MaxDrivers + 1, false, true}} {
		var b Book
		m := &nusav1.DriverForms{Truncated: c.truncated}
		for i := range c.drivers {
			m.Drivers = append(m.Drivers, driverOf(fmt.Sprintf("d%02d", i), formWith("x")))
		}
		b.Set("oslo", m)
		task := Task{Group: "web", Name: "main", Driver: "vm", Config: map[string]any{"image": "x"}}
		_, any := b.Kinds("vm", []string{"oslo"})
		if listed, _ := b.Kinds("d00", []string{"oslo"}); any != c.may || len(listed) != 1 || len(refuses(&b, "oslo", &task)) > 0 {
			t.Errorf("%s: may have another driver: %v", name, any)
		}
		task.Driver = "d00"
		if len(refuses(&b, "oslo", &task)) == 0 {
			t.Errorf("%s: a listed driver accepts everything", name)
		}
	}
}

// TestKinds: regions with the same forms are one kind, whatever else they have.
func TestKinds(t *testing.T) {
	var b Book
	for name, m := range map[string]*nusav1.DriverForms{
		"a": {Drivers: []*nusav1.DriverForm{driverOf("vm", formWith("x")), driverOf("other")}},
		"b": {Drivers: []*nusav1.DriverForm{driverOf("vm", formWith("x"), formWith("y"))}},
		"c": {Drivers: []*nusav1.DriverForm{driverOf("vm", formWith("x"))}},
		"d": {Drivers: []*nusav1.DriverForm{driverOf("other")}},
		"e": {Drivers: []*nusav1.DriverForm{driverOf("vm")}},
		"f": {Truncated: true},
	} {
		b.Set(name, m)
	}
	for regions, want := range map[string]string{
		"a b c d": "2 like a, 1 like b",
		"d none":  "",
		"a e":     "any",
		"c f":     "any",
	} {
		kinds, any := b.Kinds("vm", strings.Fields(regions))
		var got []string
		for _, k := range kinds {
			got = append(got, fmt.Sprintf("%d like %s", k.N, k.Region))
		}
		if any {
			got = []string{"any"}
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: %q, want %q", regions, text, want)
		}
	}
}
