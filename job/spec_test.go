package job

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func mustParse(t *testing.T, text string) *nusav1.JobSpec {
	t.Helper()
	spec, err := Parse([]byte(text), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestDefaultsOfTheSmallestJob shows every default.
func TestDefaultsOfTheSmallestJob(t *testing.T) {
	spec := mustParse(t, `
name: a
regions: {near: [{region: x, max_rtt: 1ms, required: true}, {region: y}]}
groups:
  g:
    ports: {http: {}}
    tasks: {t: {driver: process, config: {command: x}, check: {tcp: {port: http}}}}
  s:
    singleton: true
    reschedule: {attempts: 0, backoff: {from: 1h}}
    disconnect: {region: {running: keep, replace: false}}
    tasks: {t: {driver: process, config: {command: x}, kill_timeout: 0s, restart: {attempts: 0}}}
`)
	Default(spec)
	text, err := Marshal(spec, YAML)
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "defaults.yaml", string(text))

	system := mustParse(t, "name: a\ntype: system\ngroups: {g: {tasks: {t: {driver: process, config: {command: x}}}}}")
	Default(system)
	if system.Groups["g"].Count != nil {
		t.Error("a system job has got a count")
	}
	Default(&nusav1.JobSpec{Groups: map[string]*nusav1.Group{"g": nil}, Regions: &nusav1.RegionsSpec{}})
}

func TestUnsupported(t *testing.T) {
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	spec := mustParse(t, string(data))
	spec.Groups["cache"].Disconnect = &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{Running: nusav1.Running_RUNNING_STOP}}
	if got := Unsupported(spec); len(got) != 0 {
		t.Errorf("got:\n%s", got)
	}
	spec.Groups["web"].Tasks["tcp"].Driver = "proces"
	got := Unsupported(spec)
	if slip := got.Error(); !strings.HasSuffix(slip, `groups.web.tasks.tcp.driver: there is no driver "proces", did you mean "process"?`) {
		t.Errorf("a mistyped driver: %s", slip)
	}
	for _, p := range got.Proto() {
		if p.GetReason() != nusav1.Reason_REASON_UNSUPPORTED || p.GetField() == "" {
			t.Errorf("%v has no reason or field", p)
		}
	}
}

// TestWarningOfIgnoredPrefer: divide: capacity spreads a group over all regions that fit, also
// those that it does not prefer.
func TestWarningOfIgnoredPrefer(t *testing.T) {
	for regions, want := range map[string]bool{
		"prefer: [{name: x, weight: 9}], divide: capacity": true, "prefer: [{name: x, weight: 9}]": false, "prefer: [{name: x, weight: 9}], divide: best": false, "divide: capacity": false,
	} {
		for _, count := range []string{"1", "4"} {
			spec := mustParse(t, "name: a\nregions: {"+regions+"}\ngroups: {g: {count: "+count+", tasks: {t: {driver: process, config: {command: x}}}}}")
			Default(spec)
			out := Warnings(spec)
			if got := len(out) == 1 && strings.Contains(out[0], "only a part of it runs where regions.prefer says"); got != (want && count == "4") {
				t.Errorf("%s, count %s: %q", regions, count, out)
			}
		}
	}
}

func TestWarningsNotesAndUnknownRegions(t *testing.T) {
	spec := mustParse(t, `
name: a
regions: {allow: [{name: westeurop}, {labels: {a: b}}], prefer: [{name: eastus, weight: 1}], near: [{region: nowhere}]}
groups:
  g:
    count: 0
    tasks: {t: {driver: process, config: {command: x}}}
  h:
    disconnect: {node: {replace: false}}
    regions: {allow: [{name: mars}]}
    tasks: {t: {driver: process, config: {command: x}}}
  i:
    tasks: {t: {driver: process, config: {command: x}}}
  j:
    tasks: {t: {driver: process, config: {command: x}}}
  k:
    disconnect: {node: {after: 5s}}
    tasks: {t: {driver: process, config: {command: x}}}
  l:
    disconnect: {region: {after: 10s}}
    tasks: {t: {driver: process, config: {command: x}}}
  m:
    disconnect: {node: {after: 5s, running: stop}, region: {after: 10s, running: stop}}
    tasks: {t: {driver: process, config: {command: x}}}
  n:
    singleton: true
    disconnect: {node: {after: 5s}, region: {after: 10s}}
    tasks: {t: {driver: process, config: {command: x}}}
  o:
    disconnect: {node: {after: 5s}, region: {after: 10s, running: stop}}
    tasks: {t: {driver: process, config: {command: x}}}
`)
	Default(spec)
	want := `groups.g has a count of 0: nothing of it runs
groups.k replaces instances of a node that is cut off for only 5s (disconnect.node.after), while they may still run there: a short network fault makes them run twice
groups.l replaces instances of a region that is cut off for only 10s (disconnect.region.after), while they may still run there: a short network fault makes them run twice
groups.o keeps running on a node that is cut off (disconnect.node.running: keep), but only until the region's lease ends (disconnect.region.running: stop): a node gets that lease from its master, so it stops there, too; if that is meant, write disconnect.node.running: stop, too`
	if got := strings.Join(Warnings(spec), "\n"); got != want {
		t.Errorf("warnings:\n%s\nwant:\n%s", got, want)
	}
	want = `groups.l may run an instance twice while a node is cut off for more than 30s, or a region is cut off for more than 10s (disconnect: keep and replace)
groups.i, groups.j may run an instance twice while a node is cut off for more than 30s, or a region is cut off for more than 1m (disconnect: keep and replace)
groups.k may run an instance twice while a node is cut off for more than 5s, or a region is cut off for more than 1m (disconnect: keep and replace)
groups.h may run an instance twice while a region is cut off for more than 1m (disconnect: keep and replace)`
	if got := strings.Join(Notes(spec), "\n"); got != want {
		t.Errorf("notes:\n%s\nwant:\n%s", got, want)
	}
	want = `regions.allow[0].name: there is no region "westeurop", did you mean "westeurope"?
regions.near[0].region: there is no region "nowhere"
groups.h.regions.allow[0].name: there is no region "mars"`
	if got := UnknownRegions(spec, []string{"westeurope", "eastus"}).Error(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestRules(t *testing.T) {
	spec := mustParse(t, `
name: a
type: workflow
workflow:
  steps:
    s:
      regions: {allow: [{name: mars}, {labels: {a: b}}], near: [{domain: cdn.example}, {region: mars}]}
      groups:
        g: {regions: {prefer: [{labels: {c: d}, weight: 1}]}, tasks: {t: {driver: process, config: {command: x}}}}
`)
	var got []string
	for _, r := range Rules(spec) {
		got = append(got, fmt.Sprintf("%s %v %s", r.Path, r.Selector.GetLabels(), r.Domain))
	}
	want := []string{
		"workflow.steps.s.regions.allow[1] map[a:b] ", "workflow.steps.s.regions.near[0] map[] cdn.example",
		"workflow.steps.s.groups.g.regions.prefer[0] map[c:d] ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDiff(t *testing.T) {
	old := mustParse(t, "name: a\ngroups: {g: {count: 2, tasks: {t: {driver: process, config: {command: x, args: [a, b]}, env: {A: \"1\"}}}}}")
	next := mustParse(t, "name: a\ngroups: {g: {count: 3, ports: {http: }, tasks: {t: {driver: process, config: {command: x, args: [a]}, env: {A: \"\"}}}}}")
	Default(old)
	Default(next)
	var lines []string
	for _, d := range Diff(old, next) {
		lines = append(lines, d.GetField()+": "+d.GetOld()+" > "+d.GetNew())
	}
	want := `groups.g.count: 2 > 3
groups.g.ports.http:  > {}
groups.g.tasks.t.env.A: 1 > ""
groups.g.tasks.t.config.args[1]: b > `
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if d := Diff(nil, next); len(d) < 10 || d[0].GetField() != "name" || d[0].GetOld() != "" {
		t.Errorf("a new job: %v", d)
	}
}

func TestAsk(t *testing.T) {
	spec := mustParse(t, `
name: a
groups:
  g:
    pool: fast
    dedicated: true
    apart: [web, db, web]
    constraints: ['node.cpu_cores > 1']
    affinities: [{expression: 'node.os == "linux"', weight: 5}]
    spread: {by: node.name}
    ports: {b: {static: 80}, a: {to: 8080}, c: {static: 22}}
    volumes: {data: {source: /srv}, conf: {source: /etc/x, read_only: true}}
    tasks:
      x: {driver: process, config: {command: x, args: [-v], user: u, dir: d}, resources: {cpu: 500m, memory: 1GiB, disk: 1MiB, gpu: {count: 1, model: [b, a]}}}
      y: {driver: incus, config: {image: x, command: x}, resources: {disk: 2MiB}, secrets: [s], check: {command: [x]}}
      z: {driver: process, config: {command: x}}
`)
	Default(spec)
	got := AskOf(spec.Groups["g"])
	want := Ask{
		CPUMilli: 700, MemoryBytes: 1<<30 + 2*defaultMemory, DiskBytes: 3 << 20, GPUCount: 1, GPUModels: []string{"a", "b"},
		Drivers: []string{"incus", "process"},
		Needs:   map[string][]string{"incus": {"exec", "mounts", "secrets", "volumes"}, "process": {"gpu", "mounts", "user", "volumes"}}, Ports: []PortAsk{{"a", 0, 8080}, {"b", 80, 0}, {"c", 22, 0}},
		Pool: "fast", Dedicated: true, Constraints: []string{"node.cpu_cores > 1"}, SpreadBy: "node.name",
		Affinities: []AffinityAsk{{`node.os == "linux"`, 5}}, Apart: []string{"db", "web"},
		Volumes: []string{"/etc/x", "/srv"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if s, d := got.StaticPorts(), got.DynamicPorts(); !reflect.DeepEqual(s, []int32{22, 80}) || d != 1 {
		t.Errorf("static %v, dynamic %d", s, d)
	}
	if r := got.Resources(); r.GetCpuMilli() != 700 || r.GetGpu().GetCount() != 1 {
		t.Errorf("resources %v", r)
	}
	if r := AskOf(&nusav1.Group{}).Resources(); r.GetGpu() != nil {
		t.Errorf("no GPU was asked for: %v", r)
	}
	c := ProcessConfigOf(spec.Groups["g"].Tasks["x"])
	if !reflect.DeepEqual(c, ProcessConfig{"x", []string{"-v"}, "u", "d"}) {
		t.Errorf("config %+v", c)
	}
}

// TestHostileMessagesAreRefused: messages that no file can hold are refused.
func TestHostileMessagesAreRefused(t *testing.T) {
	task := func() *nusav1.Task {
		return &nusav1.Task{Driver: "process", Config: &structpb.Struct{Fields: map[string]*structpb.Value{"command": structpb.NewStringValue("x")}}}
	}
	base := func() *nusav1.JobSpec {
		return &nusav1.JobSpec{Name: "a", Groups: map[string]*nusav1.Group{"g": {Tasks: map[string]*nusav1.Task{"t": task()}}}}
	}
	if err := Validate(base()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*nusav1.JobSpec){
		"type: value 77 is not known":                                    func(s *nusav1.JobSpec) { s.Type = 77 },
		"groups.g.tasks.t.env.A: holds a zero byte":                      func(s *nusav1.JobSpec) { s.Groups["g"].Tasks["t"].Env = map[string]string{"A": "\x00"} },
		"groups.g.tasks.t.env.A: is not UTF-8":                           func(s *nusav1.JobSpec) { s.Groups["g"].Tasks["t"].Env = map[string]string{"A": "\xff"} },
		"groups.g.tasks.t.config.command: has no value, it must be text": func(s *nusav1.JobSpec) { s.Groups["g"].Tasks["t"].Config.Fields["command"] = nil },
		"groups.g.tasks.t.check: has no kind: one of http":               func(s *nusav1.JobSpec) { s.Groups["g"].Tasks["t"].Check = &nusav1.Check{} },
		"groups.g.tasks: is missing":                                     func(s *nusav1.JobSpec) { s.Groups["g"] = nil },
		"groups.g.tasks.t.driver: is missing":                            func(s *nusav1.JobSpec) { s.Groups["g"].Tasks["t"] = nil },
		"groups.g.max_runtime: is not a duration":                        func(s *nusav1.JobSpec) { s.Groups["g"].MaxRuntime = duration(1<<62, 0) },
		"groups.g.max_runtime: -1s is negative":                          func(s *nusav1.JobSpec) { s.Groups["g"].MaxRuntime = duration(-1, 0) },
		`regions.near[0]: give one of region, labels, location and domain`: func(s *nusav1.JobSpec) {
			s.Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{Selector: &nusav1.RegionSelector{}, Location: &nusav1.Location{}}}}
		},
		`regions.near[1]: give one of region, labels, location and domain`: func(s *nusav1.JobSpec) {
			s.Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{Domain: "a.com"}, {Domain: "a.com", Selector: &nusav1.RegionSelector{Name: "x"}}}}
		},
		`regions.near[0].domain: domain "*.a.com"`: func(s *nusav1.JobSpec) {
			s.Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{Domain: "*.a.com"}}}
		},
		"groups.g.constraints: 40 constraints, the limit is 32": func(s *nusav1.JobSpec) { s.Groups["g"].Constraints = repeat("true", 40) },
		`groups["` + strings.Repeat("x", 60) + `…"]`:            func(s *nusav1.JobSpec) { s.Groups[strings.Repeat("x", 100)+"."] = s.Groups["g"] },
		"colocate[0]: names fewer than two groups":              func(s *nusav1.JobSpec) { s.Colocate = []*nusav1.Colocation{nil} },
		"regions.prefer[0]: selects nothing":                    func(s *nusav1.JobSpec) { s.Regions = &nusav1.RegionsSpec{Prefer: []*nusav1.Preference{nil}} },
		"groups: 65 groups, the limit is 64":                    func(s *nusav1.JobSpec) { manyGroups(s) },
		"groups.g.reschedule.backoff.from: 2s is more than to, 1s": func(s *nusav1.JobSpec) {
			s.Groups["g"].Reschedule = &nusav1.Reschedule{Backoff: &nusav1.Backoff{From: duration(2, 0), To: duration(1, 0)}}
		},
		"groups.g.tasks.t.resources.gpu.share: a part of a device is": func(s *nusav1.JobSpec) {
			s.Groups["g"].Tasks["t"].Resources = &nusav1.Resources{Gpu: &nusav1.GPU{Count: 2, ShareMilli: 5}}
		},
		"groups.g.tasks.t.templates[0].text: 262145 bytes long, the l": func(s *nusav1.JobSpec) {
			s.Groups["g"].Tasks["t"].Templates = []*nusav1.Template{{Text: strings.Repeat("x", maxText+1), To: "x"}}
		},
		"groups.g.tasks.t.env.A: 131072 bytes, at most 131071: Linux": func(s *nusav1.JobSpec) {
			s.Groups["g"].Tasks["t"].Env = map[string]string{"A": strings.Repeat("x", maxArgument-1)}
		},
		"groups.g.tasks.t.config.args[0]: 131072 bytes, at most": func(s *nusav1.JobSpec) {
			arg := structpb.NewStringValue(strings.Repeat("x", maxArgument+1))
			s.Groups["g"].Tasks["t"].Config.Fields["args"] = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{arg}})
		},
	} {
		s := base()
		change(s)
		err := Validate(s)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
		// Servers call all of these on any message.
		full := proto.CloneOf(s)
		Default(full)
		_, _, _ = Unsupported(full), Warnings(full), Diff(s, full)
		_, _ = AskOf(full.Groups["g"]), UnknownRegions(full, nil)
	}
}

func duration(seconds int64, nanos int32) *durationpb.Duration {
	return &durationpb.Duration{Seconds: seconds, Nanos: nanos}
}

func repeat(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func manyGroups(s *nusav1.JobSpec) {
	for i := range 64 {
		s.Groups["x"+string(rune('a'+i/26))+string(rune('a'+i%26))] = s.Groups["g"]
	}
}

// TestOriginAddresses checks which addresses of an origin are valid.
func TestOriginAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"": "", "a.example.com": "", "localhost:80": "", "203.0.113.7": "", "203.0.113.7:443": "", "A.Example.COM.:65535": "",
		"2001:db8::1": "", "[2001:db8::1]:443": "", "[fe80::1%eth0]:1": "",
		"nonsense:99999":         `"nonsense:99999": the port "99999" is not within 1..65535`,
		"a.com:0":                `"a.com:0": the port "0" is not within 1..65535`,
		"a.com:":                 `"a.com:": the port "" is not within 1..65535`,
		"a.com:http":             `"a.com:http": the port "http" is not within 1..65535`,
		"a.com:+80":              `"a.com:+80": the port "+80" is not within 1..65535`,
		":443":                   `":443": "" is neither a host name nor an IP address`,
		"https://a.com":          `"https://a.com" is not HOST or HOST:PORT, such as 203.0.113.7:443`,
		"https://a.com:443":      `"https://a.com:443" is not HOST or HOST:PORT, such as 203.0.113.7:443`,
		"2001:db8::1:443:x":      `"2001:db8::1:443:x" is not HOST or HOST:PORT, such as 203.0.113.7:443`,
		"[2001:db8::1]":          `"[2001:db8::1]" is not HOST or HOST:PORT, such as 203.0.113.7:443`,
		"203.0.113.256:443":      `"203.0.113.256:443": "203.0.113.256" is neither a host name nor an IP address`,
		"two words":              `"two words": "two words" is neither a host name nor an IP address`,
		"a..b:1":                 `"a..b:1": "a..b" is neither a host name nor an IP address`,
		strings.Repeat("x", 254): "254 bytes long, the limit is 253",
	} {
		err := ValidateOrigins(&nusav1.OriginRecord{Domain: "a.com", Origins: []*nusav1.Origin{{Region: "r", Address: address}}})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want != "" {
			want = "origins[0].address: " + want
		}
		if got != want {
			t.Errorf("%q: %s\nwant %s", address, got, want)
		}
	}
}

// TestAmbiguousFilesAreRefused: a file that could be misread is refused. The error has the
// file and the line.
func TestAmbiguousFilesAreRefused(t *testing.T) {
	regions := func(text string) error { _, err := ParseRegions([]byte(text), "r.yaml"); return err }
	origins := func(text string) error {
		_, err := ParseOrigins([]byte(text), "o.yaml", []string{"jakarta", "tokyo"})
		return err
	}
	for _, tc := range []struct {
		parse      func(string) error
		text, want string
	}{
		{regions, "name: a\n---\nname: b\n---\nlabels: {x: y}\nname: a\n", "r.yaml:6:1: name: a is given twice in this file, first in line 1"},
		{regions, "name: a\nlocation: {latitude: 3}\n", "r.yaml:2:12: location.longitude: is missing: a location has a latitude and a longitude, in degrees"},
		{regions, "name: a\nlocation: {latitude: 0, longitude: 0}\n---\nname: b\n", ""},
		{origins, "domain: a.com\norigins: [{region: tokyo}]\n---\ndomain: A.com.\norigins: [{region: tokyo}]\n", "o.yaml:4:1: domain: a.com is given twice in this file, first in line 1"},
		{origins, "domain: a.com\norigins: [{region: tokyo}]\n---\ndomain: b.com\norigins: [{region: tokio}]\n", `o.yaml:5:12: origins[0].region: there is no region "tokio", did you mean "tokyo"?`},
		{origins, "domain: a.com\norigins: [{region: tokyo}]\n---\ndomain: '*.a.com'\norigins: [{region: jakarta}]\n", ""},
		{origins, "domain: a.com\norigins: [{region: mars}]\n", `o.yaml:2:12: origins[0].region: there is no region "mars"; there are jakarta, tokyo`},
	} {
		got := ""
		if err := tc.parse(tc.text); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s\ngot:  %s\nwant: %s", tc.text, got, tc.want)
		}
	}
}

// regionFile returns a region definition as a file.
func regionFile(def *nusav1.RegionDefinition, format Format) ([]byte, error) {
	n, err := tree(def.ProtoReflect())
	if err != nil {
		return nil, err
	}
	if format == JSON {
		return n.JSON(), nil
	}
	return n.YAML(), nil
}

// TestZeroCoordinatesAreWritten: a location on the equator or the prime meridian is
// written in full, so that it can be read back.
func TestZeroCoordinatesAreWritten(t *testing.T) {
	def := &nusav1.RegionDefinition{Name: "a", Location: &nusav1.Location{Longitude: 30}}
	for _, format := range []Format{YAML, JSON} {
		text, err := regionFile(def, format)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseRegions(text, "x"); err != nil || !proto.Equal(back[0], def) {
			t.Errorf("%s\n%v, %v", text, back, err)
		}
	}
}

func TestRegionFiles(t *testing.T) {
	defs, err := ParseRegions([]byte("region: jakarta\nlocation: {latitude: -6.2, longitude: 106.8, name: Jakarta}\nlabels: {a: 1}\n---\nregion: {name: b}\n"), "r.yaml")
	if err != nil || len(defs) != 2 || defs[0].GetName() != "jakarta" || defs[0].GetLabels()["a"] != "1" || defs[1].GetName() != "b" {
		t.Fatalf("%v, %v", defs, err)
	}
	for _, format := range []Format{YAML, JSON} {
		text, err := regionFile(defs[0], format)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseRegions(text, "x")
		if err != nil || len(back) != 1 || !proto.Equal(back[0], defs[0]) {
			t.Errorf("%s\n%v, %v", text, back, err)
		}
	}
	_, err = ParseRegions([]byte("name: Jakarta\nlocation: {latitude: 100, longitude: 0}\n---\nname: b\nlable: {}\n---\nlabels: {"+strings.Repeat("x", 64)+": a}\n"), "r.yaml")
	want := `r.yaml:1:1: name: "Jakarta" is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter
r.yaml:2:12: location.latitude: 100 is not within -90..90
r.yaml:5:1: lable: unknown field, did you mean "labels"?
r.yaml:7:1: name: is missing
r.yaml:7:10: labels.` + strings.Repeat("x", 64) + `: a label's key has 1 to 63 bytes`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

// TestFurtherDrivers: a driver that is not built in is named once, and must be the name of a plugin.
func TestFurtherDrivers(t *testing.T) {
	task := func(driver string) *nusav1.Task { return &nusav1.Task{Driver: driver} }
	spec := &nusav1.JobSpec{Groups: map[string]*nusav1.Group{
		"web":   {Tasks: map[string]*nusav1.Task{"a": task("podman"), "b": task("process")}},
		"cache": {Tasks: map[string]*nusav1.Task{"a": task("podman"), "b": task("firecracker"), "c": task("incus"), "d": task("reserve")}},
	}}
	if got := FurtherDrivers(spec); !slices.Equal(got, []string{"firecracker", "podman"}) {
		t.Errorf("%v", got)
	}
}
