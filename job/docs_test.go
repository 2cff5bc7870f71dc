package job

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestJobFileReference: docs/job-file.md has a row for each field that Parse reads, and no
// others. It has the values of the enumerations and the settings of the drivers.
func TestJobFileReference(t *testing.T) {
	text, err := os.ReadFile("../docs/job-file.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)$").FindAllStringSubmatch(string(text), -1) {
		if _, twice := rows[m[1]]; twice {
			t.Errorf("%s has two rows", m[1])
		}
		rows[m[1]] = m[2]
	}
	md := (&nusav1.JobSpec{}).ProtoReflect().Descriptor()
	fields := map[string]bool{}
	for _, p := range paths(md, "", nil) {
		if strings.HasPrefix(p, "groups.NAME.regions.") || strings.HasPrefix(p, "workflow.steps.NAME.groups.NAME.") || strings.HasPrefix(p, "workflow.steps.NAME.regions.") || strings.HasPrefix(p, "workflow.history.") {
			continue // the same as the job's
		}
		fields[p] = true
		if rows[p] == "" {
			t.Errorf("docs/job-file.md has no row for %s", p)
		}
	}
	names := func(form config.Schema) (out []string) {
		for _, f := range form {
			out = append(out, f.Name)
		}
		return out
	}
	settings := names(config.Process) // a row each
	for row := range rows {
		if !fields[row] && !slices.Contains(settings, row) && !strings.HasPrefix(row, "node.") {
			t.Errorf("docs/job-file.md has %s, which is no field", row)
		}
	}
	for _, name := range slices.Concat(settings, names(config.Docker), names(config.Incus), names(config.Reserve), config.Ulimits) {
		if !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(rows["ulimits"], name) {
			t.Errorf("docs/job-file.md does not name the setting %s", name)
		}
	}
	enums(md, map[protoreflect.FullName]bool{}, func(e protoreflect.EnumDescriptor) {
		for _, value := range enumNames(e) {
			if !strings.Contains(string(text), "`"+value+"`") {
				t.Errorf("docs/job-file.md does not name %s, a value of %s", value, e.Name())
			}
		}
	})
}

// TestJobsOfPages: the job files in the blocks of the pages about schedules, workflows and services are valid and supported.
func TestJobsOfPages(t *testing.T) {
	for _, page := range []string{"schedules.md", "workflows.md", "services.md"} {
		jobsOfPage(t, "../docs/"+page)
	}
}

func jobsOfPage(t *testing.T, page string) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) == 0 {
		t.Fatal("no job file")
	}
	for _, b := range blocks {
		spec, err := Parse([]byte(b[1]), page)
		if err != nil {
			t.Fatal(err)
		}
		Default(spec)
		if err := Validate(spec); err != nil {
			t.Error(err)
		}
		if wrong := Unsupported(spec); len(wrong) > 0 {
			t.Error(wrong)
		}
	}
}

// enums calls f with every enumeration below a message.
func enums(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool, f func(protoreflect.EnumDescriptor)) {
	if seen[md.FullName()] {
		return
	}
	seen[md.FullName()] = true
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if fd.IsMap() {
			fd = fd.MapValue()
		}
		if e := fd.Enum(); e != nil && e.ParentFile() == (&nusav1.JobSpec{}).ProtoReflect().Descriptor().ParentFile() {
			f(e)
		}
		if m := fd.Message(); m != nil {
			enums(m, seen, f)
		}
	}
}
