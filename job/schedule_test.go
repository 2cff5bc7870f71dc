package job

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSchedulesThatAreRefused: schedules that can never fire, unknown zones and wrong bounds are refused, with
// the field and the reason.
func TestSchedulesThatAreRefused(t *testing.T) {
	var out strings.Builder
	for _, text := range []string{
		"schedule: {}",
		"schedule: {cron: ['0 0 30 2 *']}",
		"schedule: {cron: ['@daily', '0 0 31 4 *']}",
		"schedule: {cron: ['every day']}",
		"schedule: {cron: ['@every 1h']}",
		"schedule: {cron: ['@daily'], time_zone: Europe/Atlantis}",
		"schedule: {cron: ['@daily'], time_zone: Local}",
		"schedule: {cron: ['@daily'], start: tomorrow}",
		"schedule: {cron: ['@daily'], start: '2026-12-24', end: '2026-12-23'}",
		"schedule: {cron: ['@daily'], exclude: [{months: jan-dec}]}",
		"schedule: {cron: ['@daily'], exclude: [{}]}",
		"schedule: {calendars: [{weekdays: mon}]}",
		"schedule: {calendars: [{at: ['25:00']}]}",
		"schedule: {calendars: [{at: ['09:00'], days: '30', months: feb}]}",
		"schedule: {calendars: [{at: ['09:00'], weekdays: 'mon#7'}]}",
		"schedule: {every: 1s}",
		"schedule: {every: 10500ms}",
		"schedule: {every: 1m, jitter: 25h, catch_up: 1s, pause_after_failures: -1}",
		"schedule: {every: 1m, buffer: 5}",
		"schedule: {every: 1m, overlap: buffer_all, buffer: 1001}",
		"schedule: {every: 1m, overlap: wait}",
		"schedule: {every: 1m, history: {count: 5000, age: 1s}}",
		"type: service\nschedule: {every: 1m}",
		"schedule: {every: 1m}\nparameterized: {}",
		"parameterized: {payload: forbidden, payload_file: x}",
		"parameterized: {payload_file: ../x}",
		"parameterized: {meta_required: [a, 'b-c'], meta_optional: [a]}",
		"type: service\nparameterized: {}",
	} {
		_, err := Parse([]byte("name: a\n"+text+"\ngroups: {g: {tasks: {t: {driver: process, config: {command: x}}}}}"), "")
		if err == nil {
			t.Errorf("accepted: %s", text)
			continue
		}
		out.WriteString(text + "\n\t" + strings.ReplaceAll(err.Error(), "\n", "\n\t") + "\n")
	}
	checkGolden(t, "schedules_refused.txt", out.String())
}

// TestNamesOfRunsFit: a job that begins runs has a shorter name, and its tasks can refer to the run's values.
func TestNamesOfRunsFit(t *testing.T) {
	const groups = "\ngroups: {g: {tasks: {t: {driver: process, config: {command: x, args: ['${NUSA_META_who}']}}}}}"
	if _, err := Parse([]byte("name: "+strings.Repeat("a", 41)+"\nparameterized: {meta_optional: [who]}"+groups), ""); err == nil || !strings.Contains(err.Error(), "the limit is 40") {
		t.Errorf("a long name: %v", err)
	}
	if _, err := Parse([]byte("name: a\nparameterized: {meta_optional: [who]}"+groups), ""); err != nil {
		t.Error(err)
	}
	if _, err := Parse([]byte("name: a\nparameterized: {}"+groups), ""); err == nil || !strings.Contains(err.Error(), "NUSA_META_who") {
		t.Errorf("an unknown value: %v", err)
	}
}

// TestDefaultsOfRuns: a job that begins runs is a batch job, and an export leaves the defaults out.
func TestDefaultsOfRuns(t *testing.T) {
	for _, text := range []string{"schedule: {cron: ['@daily'], overlap: buffer_all}", "parameterized: {}", "parameterized: {payload: forbidden}"} {
		spec := mustParse(t, "name: a\n"+text+"\ngroups: {g: {tasks: {t: {driver: process, config: {command: x}}}}}")
		Default(spec)
		if err := Validate(spec); err != nil {
			t.Fatal(err)
		}
		if spec.Type != nusav1.JobType_JOB_TYPE_BATCH {
			t.Errorf("%s: type %s", text, spec.Type)
		}
		out, err := Export(spec, YAML)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), "history") || strings.Contains(string(out), "catch_up") || strings.Contains(string(out), "payload_file") {
			t.Errorf("%s: the export has defaults:\n%s", text, out)
		}
		again := mustParse(t, string(out))
		Default(again)
		if d := Diff(spec, again); len(d) > 0 {
			t.Errorf("%s: the export differs: %v", text, d)
		}
	}
}
