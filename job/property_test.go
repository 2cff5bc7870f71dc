package job

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func reindent(t *testing.T, data []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + "\n"
}

// missing appends the fields that no message below m sets.
func missing(m protoreflect.Message, _ string, _ map[string]bool, out *[]string) {
	set, all := map[string]bool{}, map[string]bool{}
	var walk func(m protoreflect.Message)
	walk = func(m protoreflect.Message) {
		if strings.HasPrefix(string(m.Descriptor().FullName()), "google.") {
			return
		}
		for i := range m.Descriptor().Fields().Len() {
			all[string(m.Descriptor().Fields().Get(i).FullName())] = true
		}
		m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			set[string(fd.FullName())] = true
			switch {
			case fd.IsMap() && fd.MapValue().Message() != nil:
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { walk(v.Message()); return true })
			case fd.IsList() && fd.Message() != nil:
				for i := range v.List().Len() {
					walk(v.List().Get(i).Message())
				}
			case !fd.IsMap() && fd.Message() != nil:
				walk(v.Message())
			}
			return true
		})
	}
	walk(m)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if !set[k] {
			*out = append(*out, k)
		}
	}
}

// anySpec draws a valid spec. It fills messages at random from their descriptors, and then
// corrects fields that depend on each other.
func anySpec(t *rapid.T) *nusav1.JobSpec {
	name := rapid.StringMatching(`[a-z][a-z0-9-]{0,8}`)
	spec := &nusav1.JobSpec{Name: name.Draw(t, "name"), Groups: map[string]*nusav1.Group{}}
	if rapid.Bool().Draw(t, "namespaced") {
		spec.Namespace = name.Draw(t, "namespace")
	}
	spec.Type = nusav1.JobType(rapid.IntRange(0, 3).Draw(t, "type"))
	if rapid.Bool().Draw(t, "has priority") {
		spec.Priority = proto.Int32(rapid.Int32Range(0, 100).Draw(t, "priority"))
	}
	spec.Labels = anyStrings(t, 3)
	for range rapid.IntRange(1, 2).Draw(t, "groups") {
		spec.Groups[name.Draw(t, "group")] = anyGroup(t, spec.Type)
	}
	if keys := sorted(spec.Groups); len(keys) > 1 && rapid.Bool().Draw(t, "colocate") {
		spec.Colocate = []*nusav1.Colocation{{Groups: keys}}
		for _, k := range keys[1:] { // colocated groups make the same choice
			spec.Groups[k].Disconnect = proto.CloneOf(spec.Groups[keys[0]].Disconnect)
		}
	}
	if rapid.Bool().Draw(t, "regions") {
		spec.Regions = anyRegions(t)
	}
	for _, g := range spec.Groups {
		for _, task := range g.Tasks {
			if bound(g) && task.GetKillTimeout().AsDuration() > maxBoundKill {
				task.KillTimeout = durationpb.New(maxBoundKill)
			}
		}
	}
	return spec
}

func anyStrings(t *rapid.T, most int) map[string]string {
	out := map[string]string{}
	for range rapid.IntRange(0, most).Draw(t, "strings") {
		out[rapid.StringMatching(`[A-Za-z_][A-Za-z0-9_]{0,9}`).Draw(t, "key")] = anyText(t)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func anyText(t *rapid.T) string {
	s := rapid.OneOf(rapid.StringN(0, 20, 200), rapid.SampledFrom([]string{"", "yes", "1", "0x1", "a: b", "x\ny\n", "- a", "${NUSA_JOB} ${OTHER}", "~", "#"})).Draw(t, "text")
	return strings.ReplaceAll(s, "\x00", "")
}

func anyDuration(t *rapid.T, low time.Duration) *durationpb.Duration {
	if rapid.Bool().Draw(t, "absent") {
		return nil
	}
	return durationpb.New(rapid.OneOf(
		rapid.Map(rapid.Int64Range(int64(low), int64(time.Hour)), func(n int64) time.Duration { return time.Duration(n) }),
		rapid.Map(rapid.Int64Range(int64(low/time.Second)+1, 7200), func(n int64) time.Duration { return time.Duration(n) * time.Second }),
	).Draw(t, "duration"))
}

func anyRegions(t *rapid.T) *nusav1.RegionsSpec {
	selector := func() *nusav1.RegionSelector {
		if rapid.Bool().Draw(t, "by labels") {
			return &nusav1.RegionSelector{Labels: map[string]string{"k": anyText(t)}}
		}
		return &nusav1.RegionSelector{Name: "westeurope"}
	}
	r := &nusav1.RegionsSpec{Divide: nusav1.Divide(rapid.IntRange(0, 2).Draw(t, "divide"))}
	if rapid.Bool().Draw(t, "allow") {
		r.Allow = append(r.Allow, selector())
	}
	if rapid.Bool().Draw(t, "prefer") {
		r.Prefer = append(r.Prefer, &nusav1.Preference{Selector: selector(), Weight: rapid.Int32Range(1, 100).Draw(t, "weight")})
	}
	if rapid.Bool().Draw(t, "near") {
		n := &nusav1.Near{Selector: selector(), Percentile: rapid.SampledFrom([]int32{0, 50, 90, 99}).Draw(t, "percentile"), MaxRtt: durationpb.New(40 * time.Millisecond), Required: rapid.Bool().Draw(t, "required")}
		n.Unknown = nusav1.Unknown(rapid.IntRange(0, 3).Draw(t, "unknown"))
		r.Near = append(r.Near, n, &nusav1.Near{Location: &nusav1.Location{Latitude: rapid.Float64Range(-90, 90).Draw(t, "latitude") + 0 /* -0 has no text of its own */, Longitude: 1e-7}})
	}
	if rapid.Bool().Draw(t, "spread") {
		r.Spread = &nusav1.RegionSpread{Max: rapid.Int32Range(0, 5).Draw(t, "max")}
	}
	return r
}

func anyGroup(t *rapid.T, kind nusav1.JobType) *nusav1.Group {
	g := &nusav1.Group{Tasks: map[string]*nusav1.Task{}, Dedicated: rapid.Bool().Draw(t, "dedicated"), MaxRuntime: anyDuration(t, 0)}
	if kind != nusav1.JobType_JOB_TYPE_SYSTEM && rapid.Bool().Draw(t, "has count") {
		g.Count = proto.Int32(rapid.Int32Range(0, 100_000).Draw(t, "count"))
	}
	if rapid.Bool().Draw(t, "ports") {
		g.Ports = map[string]*nusav1.Port{"http": {}, "admin": {To: rapid.Int32Range(0, 65535).Draw(t, "to"), Static: rapid.Int32Range(0, 65535).Draw(t, "static")}}
	}
	if rapid.Bool().Draw(t, "apart") {
		g.Apart = []string{"web", "db"}
	}
	if rapid.Bool().Draw(t, "bound") {
		g.Disconnect = &nusav1.Disconnect{
			Node: &nusav1.DisconnectLevel{Running: nusav1.Running(rapid.IntRange(0, 2).Draw(t, "node"))},
			Region: &nusav1.DisconnectLevel{Running: nusav1.Running(rapid.IntRange(0, 2).Draw(t, "region")), Failback: &nusav1.Failback{
				Mode: nusav1.FailbackMode(rapid.IntRange(0, 3).Draw(t, "mode")), After: anyDuration(t, time.Second)}},
		}
	} else if rapid.Bool().Draw(t, "constraint") {
		g.Constraints = []string{`node.labels["disk"] == "ssd"`}
		g.Disconnect = &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{After: anyDuration(t, time.Second), Replace: proto.Bool(rapid.Bool().Draw(t, "replace"))}}
		g.Regions = anyRegions(t)
		g.Update = &nusav1.Update{}
	}
	for range rapid.IntRange(1, 2).Draw(t, "tasks") {
		task := anyTask(t)
		if kind == nusav1.JobType_JOB_TYPE_BATCH {
			task.Check = nil
		}
		g.Tasks[rapid.StringMatching(`[a-z]{1,3}`).Draw(t, "task")] = task
	}
	return g
}

func anyTask(t *rapid.T) *nusav1.Task {
	config, err := structpb.NewStruct(map[string]any{
		"text": anyText(t), "number": rapid.Float64().Draw(t, "number"), "list": []any{true, nil, map[string]any{anyText(t): 1}},
	})
	if err != nil {
		t.Skip("the random number or text is not of JSON")
	}
	if n := config.Fields["number"].GetNumberValue(); n > 1<<53 || n < -1<<53 {
		config.Fields["number"] = structpb.NewNumberValue(1)
	}
	out := &nusav1.Task{Driver: "plugin", Config: config, Env: anyStrings(t, 3), KillTimeout: anyDuration(t, 0)}
	if rapid.Bool().Draw(t, "resources") {
		out.Resources = &nusav1.Resources{CpuMilli: rapid.Int64Range(0, maxCPU).Draw(t, "cpu"), MemoryBytes: rapid.Int64Range(minMemory, maxMemory).Draw(t, "memory"), DiskBytes: rapid.Int64Range(0, 1<<40).Draw(t, "disk")}
	}
	if rapid.Bool().Draw(t, "template") {
		out.Templates = []*nusav1.Template{{Text: anyText(t), To: "local/x"}}
		out.Restart = &nusav1.Restart{Attempts: proto.Int32(0), Window: anyDuration(t, time.Second)}
		out.Check = &nusav1.Check{Kind: &nusav1.Check_Command{Command: &nusav1.CommandCheck{Command: []string{"x" + anyText(t)}}}}
	}
	return out
}

// TestFilesHoldTheWholeSpec: files in both syntaxes hold all of a valid spec. The spec
// with defaults is valid, a second call of Default does not change it, and its diff with
// itself is empty.
func TestFilesHoldTheWholeSpec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := anySpec(t)
		if err := Validate(spec); err != nil {
			t.Fatalf("the drawn spec is not valid: %v", err)
		}
		for _, format := range []Format{YAML, JSON} {
			text, err := Marshal(spec, format)
			if err != nil {
				t.Fatal(err)
			}
			back, err := Parse(text, "x")
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if !proto.Equal(spec, back) {
				t.Fatalf("written:\n%s\nread: %v\nwant: %v", text, back, spec)
			}
		}
		full := proto.CloneOf(spec)
		Default(full)
		if err := Validate(full); err != nil {
			t.Fatalf("defaulted: %v", err)
		}
		again := proto.CloneOf(full)
		Default(again)
		if !proto.Equal(full, again) {
			t.Fatalf("defaulting twice differs: %v", Diff(full, again))
		}
		if d := Diff(full, again); len(d) != 0 {
			t.Fatalf("equal specs differ: %v", d)
		}
	})
}

// TestDiffIsComplete: the diff of two specs has lines exactly if the specs differ. The
// lines change the values of one spec to those of the other.
func TestDiffIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anySpec(t), anySpec(t)
		if rapid.Bool().Draw(t, "related") {
			b = proto.CloneOf(a)
			b.Priority = proto.Int32(rapid.Int32Range(0, 100).Draw(t, "new priority"))
		}
		state := map[string]string{}
		for _, l := range leaves(a) {
			state[l.path] = l.text
		}
		for _, d := range Diff(a, b) {
			if state[d.Field] != d.Old || d.Old == d.New {
				t.Fatalf("line %v does not fit %q", d, state[d.Field])
			}
			state[d.Field] = d.New
			if d.New == "" {
				delete(state, d.Field)
			}
		}
		want := map[string]string{}
		for _, l := range leaves(b) {
			want[l.path] = l.text
		}
		if !maps.Equal(state, want) {
			t.Fatalf("got %v\nwant %v", state, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/full.yaml", "testdata/full.json", "testdata/bad.txt", "../examples/hello.yaml"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		for _, part := range strings.Split(string(data), "===") {
			f.Add([]byte(part))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := Parse(data, "x.yaml")
		if err != nil {
			if _, ok := err.(Errors); !ok {
				t.Fatalf("the error is a %T", err)
			}
			return
		}
		text, err := Marshal(spec, YAML)
		if err != nil {
			t.Fatalf("a parsed spec cannot be written: %v", err)
		}
		back, err := Parse(text, "x.yaml")
		if err != nil {
			t.Fatalf("what was written is refused: %v\n%s", err, text)
		}
		if !proto.Equal(spec, back) {
			t.Fatalf("written:\n%s\nread: %v\nwant: %v", text, back, spec)
		}
		Default(spec)
		_, _, _ = Unsupported(spec), Warnings(spec), Diff(nil, spec)
	})
}

// FuzzRegions: whatever a file of regions or of origins has, it is read or refused.
func FuzzRegions(f *testing.F) {
	f.Add([]byte("name: jakarta\nlocation: {latitude: -6.2, longitude: 106.8}\nlabels: {a: b}\n"))
	f.Add([]byte("name: users\nlocation: {latitude: 1, longitude: 2}\nweight: 3\n---\nname: x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		regions, err := ParseRegions(data, "x.yaml")
		for _, r := range regions {
			if err == nil && ValidateRegion(r) != nil {
				t.Fatalf("read, and not valid: %v", r)
			}
		}
		origins, err := ParseOrigins(data, "x.yaml", []string{"jakarta"})
		for _, o := range origins {
			if err == nil && ValidateOrigins(o) != nil {
				t.Fatalf("read, and not valid: %v", o)
			}
		}
	})
}
