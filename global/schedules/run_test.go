package schedules

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

const dispatched = `name: resize
parameterized: {payload: optional, meta_required: [who], meta_optional: [size]}
groups:
  main:
    tasks:
      main:
        driver: docker
        config: {image: "resize:${NUSA_META_size}", args: ["${NUSA_META_who}", "${NUSA_PAYLOAD_FILE}"]}
        env: {OWNER: "${NUSA_META_who} of ${NUSA_RUN_OF}"}
        templates: [{text: "who=${NUSA_META_who}", to: who.conf}]
`

func specOfText(t *testing.T, text string) *nusav1.JobSpec {
	t.Helper()
	spec, err := job.Parse([]byte(text), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestARunHasItsValues: each place of a task that may refer to a value has it, and the payload stays as
// it is.
func TestARunHasItsValues(t *testing.T) {
	spec := specOfText(t, dispatched)
	run, err := specOf(spec, "resize.x", noon, input{payload: []byte("${who} {{x}}"), meta: map[string]string{"who": "jane", "size": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	task := run.GetGroups()["main"].GetTasks()["main"]
	var env []string
	for _, k := range slices.Sorted(maps.Keys(task.GetEnv())) {
		env = append(env, k+"="+task.GetEnv()[k])
	}
	got := fmt.Sprint(run.GetName(), " ", run.GetLabels(), env, task.GetTemplates()[0].GetText(), task.GetTemplates()[1].GetText(), task.GetTemplates()[1].GetTo(), task.GetConfig().AsMap())
	want := "resize.x map[nusa-run-of:resize nusa-run-time:2026-11-28T12:00:00Z] " +
		"[NUSA_META_size=2 NUSA_META_who=jane NUSA_PAYLOAD_FILE=${NUSA_TASK_DIR}/payload NUSA_RUN_OF=resize NUSA_RUN_TIME=2026-11-28T12:00:00Z OWNER=jane of resize]" +
		"who=jane${who} {{x}}payloadmap[args:[jane ${NUSA_TASK_DIR}/payload] image:resize:2]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if spec.GetName() != "resize" || spec.GetParameterized() == nil || len(spec.GetGroups()["main"].GetTasks()["main"].GetTemplates()) != 1 {
		t.Error("the job has changed")
	}
}

// TestAValueCannotMakeAnInvalidRun: what a submit refuses, a dispatch refuses.
func TestAValueCannotMakeAnInvalidRun(t *testing.T) {
	spec := specOfText(t, dispatched+"        artifacts: [{source: \"https://files.example.com/${NUSA_META_size}\", to: local/}]\n")
	if _, err := checkedRun(spec, "resize.x", noon, input{meta: map[string]string{"who": "jane", "size": "large.png"}}); err != nil {
		t.Error(err)
	}
	_, err := checkedRun(spec, "resize.x", noon, input{meta: map[string]string{"who": "jane"}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "file's name") {
		t.Errorf("without a file: %v", err)
	}
	large := specOfText(t, dispatched)
	tasks := large.GetGroups()["main"].GetTasks()
	for i := range 20 {
		tasks[fmt.Sprint("t", i)] = tasks["main"]
	}
	if _, err := newRun(large, "resize.x", noon, input{payload: make([]byte, job.MaxPayload)}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "each task gets") {
		t.Errorf("a large run: %v", err)
	}
}

func TestDispatchNames(t *testing.T) {
	long := strings.Repeat("x", 40)
	a, b, c := dispatchName(long, "key", noon), dispatchName(long, "key", noon.Add(time.Hour)), dispatchName(long, "other", noon)
	if a != b || a == c {
		t.Errorf("%s, %s, %s", a, b, c)
	}
	for _, name := range []string{a, c, dispatchName(long, "", noon)} {
		if len(name) > 63 || !job.ValidReference(name) || job.ValidName(name) {
			t.Errorf("%s, %d bytes", name, len(name))
		}
	}
	one := &nusav1.DispatchJobRequest{Meta: map[string]string{"a": "b"}, Payload: []byte("c")}
	two := &nusav1.DispatchJobRequest{Meta: map[string]string{"a": "bc"}}
	if string(fingerprintOf(one)) == string(fingerprintOf(two)) {
		t.Error("two dispatches have one fingerprint")
	}
}

// TestOldRunsAreForgotten: by count, by age, and all of a job that is gone; never an active one.
func TestOldRunsAreForgotten(t *testing.T) {
	runs := map[string]*nusav1.RunRecord{"active": {Run: &nusav1.JobRun{Name: "active"}}}
	for i := range 5 { // r0 ended first
		name := fmt.Sprint("r", i)
		runs[name] = &nusav1.RunRecord{Run: &nusav1.JobRun{Name: name, Ended: timestamppb.New(noon.Add(time.Duration(i) * time.Minute))}}
	}
	now := noon.Add(10 * time.Minute)
	for _, c := range []struct {
		count int32
		age   time.Duration
		all   bool
		want  string
		next  time.Duration // after noon
	}{
		{20, time.Hour, false, "", time.Hour},
		{3, time.Hour, false, "r1 r0", time.Hour + 2*time.Minute},
		{20, 8 * time.Minute, false, "r2 r1 r0", 11 * time.Minute},
		{2, 8 * time.Minute, false, "r2 r1 r0", 11 * time.Minute},
		{20, time.Hour, true, "r4 r3 r2 r1 r0", 0},
	} {
		names, next := beyond(runs, &nusav1.RunHistory{Count: c.count, Age: durationpb.New(c.age)}, c.all, now)
		if got := strings.Join(names, " "); got != c.want || c.next > 0 && !next.Equal(noon.Add(c.next)) || c.next == 0 && !next.IsZero() {
			t.Errorf("%v: %q, next %s", c, got, next)
		}
	}
}

// TestANextTimeIsFoundOnce: the steps of a schedule ask for the same times again, under the lock.
func TestANextTimeIsFoundOnce(t *testing.T) {
	asked := 0
	next := remembered(func(after time.Time) (time.Time, bool) {
		asked++
		return after.Add(time.Hour), after.Before(noon.Add(3 * time.Hour))
	})
	for range 3 {
		for at, ok := noon, true; ok; {
			var to time.Time
			to, ok = next(at)
			if want := at.Add(time.Hour); !to.Equal(want) || ok != at.Before(noon.Add(3*time.Hour)) {
				t.Fatalf("after %s: %s, %t", at, to, ok)
			}
			at = to
		}
	}
	if asked != 4 {
		t.Errorf("4 times were searched %d times", asked)
	}
}

// TestAValueInManyPlacesTakesLittleMemory: a text may refer to a long value thousands of times. The run is refused
// before the text with the values is made, which would take up to 150 MiB.
func TestAValueInManyPlacesTakesLittleMemory(t *testing.T) {
	spec := specOfText(t, dispatched)
	task := spec.GetGroups()["main"].GetTasks()["main"]
	for _, text := range []string{"${NUSA_META_who}", "${NUSA_META_who", "${NUSA_${NUSA_META_who}"} {
		task.Templates[0].Text = strings.Repeat(text, (400<<10)/len(text))
		value := strings.Repeat("x", job.MaxMeta)
		wide := strings.HasSuffix(text, "}")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := checkedRun(spec, "resize.x", noon, input{meta: map[string]string{"who": value}})
		runtime.ReadMemStats(&after)
		if refused := status.Code(err) == codes.InvalidArgument && strings.Contains(err.Error(), "each reference to a value"); refused != wide {
			t.Errorf("%s: %v", text, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
			t.Errorf("%s: %d MiB were used", text, used>>20)
		}
	}
}
