package job

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/golden"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	golden.File(t, filepath.Join("testdata", name), got)
}

// TestErrorsOfBadFiles reads testdata/bad.txt. Each part begins with a line "=== name",
// has a file, and after "---" the lines of the error.
func TestErrorsOfBadFiles(t *testing.T) {
	text, err := os.ReadFile("testdata/bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, c := range strings.Split(string(text), "=== ")[1:] {
		head, rest, _ := strings.Cut(c, "\n")
		input, _, found := strings.Cut(rest, "--- error\n")
		if !found {
			t.Fatalf("%s: no line '--- error'", head)
		}
		filename := strings.Fields(head)[0]
		spec, err := Parse([]byte(input), filename)
		if err == nil {
			t.Errorf("%s is accepted: %v", head, spec)
			continue
		}
		if errs, ok := err.(Errors); !ok || len(errs) == 0 {
			t.Errorf("%s: the error is a %T", head, err)
		}
		fmt.Fprintf(&out, "=== %s\n%s--- error\n%s\n", head, input, err)
	}
	checkGolden(t, "bad.txt", out.String())
}

// TestEveryFieldIsRead reads a file that has every field, and compares the message. A
// field with two names is read by both.
func TestEveryFieldIsRead(t *testing.T) {
	unset := map[string]int{}
	files := []string{"full", "schedule", "dispatch", "retry", "workflow"} // no job has all fields
	for _, name := range files {
		data, err := os.ReadFile("testdata/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		spec, err := Parse(data, name+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, name+".json", canonical(t, spec))
		text, err := Marshal(spec, YAML)
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, name+".marshalled.yaml", string(text))
		var fields []string
		missing(spec.ProtoReflect(), "", map[string]bool{}, &fields)
		of := fields
		if name != "full" { // only the fields that this file is about
			of = nil
			for _, f := range fields {
				if name == "workflow" && (strings.Contains(f, ".Workflow") || strings.Contains(f, ".Step") || strings.Contains(f, ".Foreach.")) {
					t.Errorf("testdata/workflow.yaml does not set %s", f)
				}
				if name == "workflow" && f == "nusa.v1.Parameterized.history" {
					continue // a workflow has its own
				}
				if strings.Contains(f, ".Schedule.") || strings.Contains(f, ".Calendar.") || strings.Contains(f, ".Exclusion.") || strings.Contains(f, ".Parameterized.") || strings.Contains(f, ".RunHistory.") || strings.Contains(f, ".Retry.") || strings.Contains(f, ".RetryRule.") || name == "retry" && f == "nusa.v1.Group.parallel" {
					t.Errorf("testdata/%s.yaml does not set %s", name, f)
				}
			}
		}
		for _, f := range of {
			if f != "nusa.v1.JobSpec.schedule" && f != "nusa.v1.JobSpec.parameterized" && f != "nusa.v1.Group.retry" && f != "nusa.v1.JobSpec.workflow" && f != "nusa.v1.Group.parallel" {
				unset[f]++
			}
		}
	}
	if len(unset) > 0 {
		t.Errorf("testdata/full.yaml does not set %v: every field of the file is to be read in this test", slices.Sorted(maps.Keys(unset)))
	}
}

func canonical(t *testing.T, m proto.Message) string {
	t.Helper()
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return reindent(t, data)
}

func TestWrapperAndAliases(t *testing.T) {
	const rest = "groups: {g: {tasks: {t: {driver: process, config: {command: x}, resources: {memory: %s}}}}}"
	indented := "\n  " + fmt.Sprintf(rest, "64Mi")
	var first *nusav1.JobSpec
	for _, text := range []string{
		"name: a\n" + fmt.Sprintf(rest, "64MiB"),
		"job: a\n" + fmt.Sprintf(rest, "67108864"),
		"job:\n  name: a" + indented,
		"{\"name\": \"a\", \"groups\": {\"g\": {\"tasks\": {\"t\": {\"driver\": \"process\", \"config\": {\"command\": \"x\"}, \"resources\": {\"memory\": \"64M\"}}}}}}",
	} {
		spec, err := Parse([]byte(text), "a.yaml")
		if err != nil {
			t.Errorf("%s\n%v", text, err)
			continue
		}
		if first == nil {
			first = spec
		}
		if !proto.Equal(spec, first) {
			t.Errorf("%s\nis read as %v\n     not as %v", text, spec, first)
		}
	}
}

func TestSizeLimit(t *testing.T) {
	base := "name: a\ngroups: {g: {tasks: {t: {driver: process, config: {command: x}}}}}\n"
	if _, err := Parse([]byte(base+"#"+strings.Repeat("x", MaxSize-len(base)-1)), "a.yaml"); err != nil {
		t.Errorf("a job of exactly the limit: %v", err)
	}
	_, err := Parse([]byte(base+"#"+strings.Repeat("x", MaxSize-len(base))), "a.yaml")
	if err == nil || err.Error() != "a.yaml:1:1: more than 1MiB, the limit of a job" {
		t.Errorf("a job over 1 MiB: %v", err)
	}
	big := &nusav1.JobSpec{Name: "a", Labels: map[string]string{"x": strings.Repeat("x", MaxSize)}}
	if err := Validate(big); err == nil || !strings.Contains(err.Error(), "the limit is 1MiB") {
		t.Errorf("a message over 1 MiB: %v", err)
	}
}

func TestManyProblemsAreCut(t *testing.T) {
	text := "name: a\n" + strings.Repeat("\n", 5)
	for i := range 50 {
		text += fmt.Sprintf("x%d: 1\n", i)
	}
	_, err := Parse([]byte(text), "a.yaml")
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != maxProblems || lines[maxProblems-1] != "a.yaml: and 31 more problems" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
}

// TestLongNamesInErrors: a long name around many faults is not in each of their errors.
func TestLongNamesInErrors(t *testing.T) {
	spec := &nusav1.JobSpec{Name: "a", Groups: map[string]*nusav1.Group{
		strings.Repeat("k", 100_000): {Tasks: map[string]*nusav1.Task{strings.Repeat("t", 100_000): {Driver: "process", Env: map[string]string{}}}},
	}}
	for _, g := range spec.GetGroups() {
		for _, task := range g.GetTasks() {
			for i := range 1000 {
				task.Env[fmt.Sprint("=", i)] = "x"
			}
		}
	}
	var errs Errors
	if err := Validate(spec); !errors.As(err, &errs) {
		t.Fatal(err)
	}
	if n := len(errs.Error()); n > 20_000 {
		t.Errorf("%d problems take %d bytes", len(errs), n)
	}
}

func TestExamplesAndSamples(t *testing.T) {
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(f) == "region.yaml" {
			if defs, err := ParseRegions(data, f); err != nil || len(defs) != 2 {
				t.Errorf("%d regions, %v", len(defs), err)
			}
			continue
		}
		if filepath.Base(f) == "origins.yaml" {
			if records, err := ParseOrigins(data, f, nil); err != nil || len(records) != 2 {
				t.Errorf("%d origin records, %v", len(records), err)
			}
			continue
		}
		spec, err := Parse(data, f)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if u := Unsupported(spec); len(u) > 0 {
			t.Errorf("%s: %v", f, u)
		}
	}
	for _, kind := range []string{"service", "batch", "system"} {
		jobType, ok := ParseType(kind)
		if !ok {
			t.Fatalf("no type %s", kind)
		}
		text, err := Sample("some-job", jobType)
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, "sample."+kind+".yaml", text)
		spec, err := Parse([]byte(text), kind)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if spec.GetType() != jobType || spec.GetName() != "some-job" || len(Unsupported(spec)) > 0 {
			t.Errorf("%s: %v, unsupported %v", kind, spec, Unsupported(spec))
		}
		// The examples in comments are correct, too.
		if _, err := Parse([]byte(uncomment(text)), kind); err != nil {
			t.Errorf("%s without its comment signs: %v\n%s", kind, err, uncomment(text))
		}
	}
}

// uncomment makes settings of the lines that are commented out.
func uncomment(text string) string {
	var out []string
	for i, l := range strings.Split(text, "\n") {
		blank := l[:len(l)-len(strings.TrimLeft(l, " "))]
		body, commented := strings.CutPrefix(l[len(blank):], "# ")
		prose := i < 3 || strings.HasPrefix(body, "Which regions")
		if commented && !prose {
			l = blank + body
		}
		out = append(out, l)
	}
	return strings.Join(out, "\n")
}

func TestQuantities(t *testing.T) {
	for in, want := range map[string]int64{
		"256MiB": 256 << 20, "256Mi": 256 << 20, "256M": 256 << 20, "1GiB": 1 << 30, "1Gi": 1 << 30, "1.5G": 3 << 29,
		"1024": 1024, "0": 0, "7B": 7, "2TiB": 2 << 40, "1 GiB": 1 << 30, "1e3": 1000, "4k": 4096,
	} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for in, want := range map[string]int64{"500m": 500, "0.5": 500, "2": 2000, "0.001": 1, "1500m": 1500} {
		if got, err := ParseCPU(in); err != nil || got != want {
			t.Errorf("ParseCPU(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for in, want := range map[time.Duration]string{
		0: "0s", 24 * time.Hour: "24h", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", 250 * time.Millisecond: "250ms", time.Hour + time.Second: "1h0m1s", 10 * time.Second: "10s",
	} {
		if got := FormatDuration(in); got != want {
			t.Errorf("FormatDuration(%v) = %s, want %s", in, got, want)
		}
		if back, err := ParseDuration(want); err != nil || back != in {
			t.Errorf("ParseDuration(%q) = %v, %v", want, back, err)
		}
	}
	for n, want := range map[int64]string{0: "0", 1: "1", 1024: "1KiB", 1 << 20: "1MiB", 3 << 29: "1536MiB", 1<<20 + 1: "1048577"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %s, want %s", n, got, want)
		}
	}
}
