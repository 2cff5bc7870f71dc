package schedules

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// input is what a run gets.
type input struct {
	payload []byte
	meta    map[string]string
	labels  map[string]string
	// own: the spec is used only for the run, which may change it.
	own bool
}

// specOf returns the job of a run. The error says that it would be too large.
func specOf(spec *nusav1.JobSpec, name string, at time.Time, in input) (*nusav1.JobSpec, error) {
	out, of, p := spec, spec.GetName(), spec.GetParameterized()
	if !in.own {
		out = proto.CloneOf(spec)
	}
	out.Name, out.Schedule, out.Parameterized = name, nil, nil
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	maps.Copy(out.Labels, in.labels)
	out.Labels[job.LabelRunOf], out.Labels[job.LabelRunTime] = of, at.UTC().Format(time.RFC3339)
	values := map[string]string{"NUSA_RUN_OF": of, "NUSA_RUN_TIME": at.UTC().Format(time.RFC3339)}
	for _, k := range p.GetMetaOptional() {
		values["NUSA_META_"+k] = ""
	}
	for k, v := range in.meta {
		values["NUSA_META_"+k] = v
	}
	payload, left := string(in.payload), job.MaxSize
	for _, g := range out.GetGroups() {
		for _, t := range g.GetTasks() {
			own := values
			if payload != "" {
				left -= len(payload)
				t.Templates = append(t.Templates, &nusav1.Template{Text: payload, To: p.GetPayloadFile()})
				own = with(values, "NUSA_PAYLOAD_FILE", "${NUSA_TASK_DIR}/"+p.GetPayloadFile())
			} else if p != nil && p.GetPayload() != nusav1.Payload_PAYLOAD_FORBIDDEN {
				own = with(values, "NUSA_PAYLOAD_FILE", "")
			}
			left = fill(t, own, payload != "", left)
			if left < 0 {
				return nil, invalid("payload", "makes a job of more than %d bytes, the limit: each task gets the payload, and each reference to a value its text", job.MaxSize)
			}
		}
	}
	return out, nil
}

func with(values map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range values {
		out[k] = v
	}
	return out
}

// fill gives a task the variables of a run, and replaces references to them. An agent of an earlier
// version does not know these variables. payload: the last template is the payload, which stays as it is. A short
// reference to a long value may stand in a text thousands of times. So left bounds the bytes that are made: fill
// returns what is left, and stops if that is negative.
func fill(t *nusav1.Task, values map[string]string, payload bool, left int) int {
	r := newFiller(values, left)
	for k, v := range t.GetEnv() {
		t.Env[k] = r.Replace(v)
	}
	if t.Env == nil {
		t.Env = map[string]string{}
	}
	for k, v := range values {
		t.Env[k] = v
		r.left -= len(k) + len(v)
	}
	texts := t.GetTemplates()
	if payload {
		texts = texts[:len(texts)-1]
	}
	for _, f := range texts {
		f.Text = r.Replace(f.GetText())
	}
	for _, a := range t.GetArtifacts() {
		a.Source = r.Replace(a.GetSource())
	}
	replaceIn(r, structpb.NewStructValue(t.GetConfig()))
	return r.left
}

// longestReference is more than the length of a reference to a value, in bytes.
const longestReference = 128

// filler replaces references to values.
type filler struct {
	values map[string]string // by reference
	r      *strings.Replacer
	left   int
}

func newFiller(values map[string]string, left int) *filler {
	f := &filler{values: make(map[string]string, len(values)), left: left}
	pairs := make([]string, 0, 2*len(values))
	for k, v := range values {
		f.values["${"+k+"}"] = v
		pairs = append(pairs, "${"+k+"}", v)
	}
	f.r = strings.NewReplacer(pairs...)
	return f
}

// Replace returns a text with the values. Once too many bytes were made, it returns it without them.
func (f *filler) Replace(text string) string {
	size := len(text)
	for rest := text; ; {
		at := strings.Index(rest, reference)
		if at < 0 {
			break
		}
		rest = rest[at:]
		end := strings.IndexByte(rest[:min(len(rest), longestReference)], '}') + 1
		if v, is := f.values[rest[:end]]; is {
			size += len(v) - end
		}
		rest = rest[len(reference):]
	}
	if f.left -= size; f.left < 0 {
		return text
	}
	return f.r.Replace(text)
}

func replaceIn(r *filler, v *structpb.Value) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		k.StringValue = r.Replace(k.StringValue)
	case *structpb.Value_ListValue:
		for _, item := range k.ListValue.GetValues() {
			replaceIn(r, item)
		}
	case *structpb.Value_StructValue:
		for _, field := range k.StructValue.GetFields() {
			replaceIn(r, field)
		}
	}
}

// runJob is the job of a run, ready to be stored.
type runJob struct {
	name    string
	at      time.Time
	spec    *state.Spec
	encoded []byte
	hash    [sha256.Size]byte
}

// newRun returns the job of a run.
func newRun(spec *nusav1.JobSpec, name string, at time.Time, in input) (*runJob, error) {
	out, err := specOf(spec, name, at, in)
	if err != nil {
		return nil, err
	}
	return encodedRun(out, at)
}

// encodedRun returns the job of a run with a complete spec.
func encodedRun(out *nusav1.JobSpec, at time.Time) (*runJob, error) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(out)
	switch {
	case err != nil:
		return nil, fmt.Errorf("encode the run: %w", err)
	case len(encoded) > job.MaxSize:
		return nil, invalid("payload", "makes a job of %d bytes, at most %d are taken: each task gets the payload and the values", len(encoded), job.MaxSize)
	}
	return &runJob{name: out.GetName(), at: at, spec: state.SpecOf(out, encoded), encoded: encoded, hash: sha256.Sum256(encoded)}, nil
}

// begin stores a run with its job.
func begin(t *state.Tx, of state.JobKey, r *runJob, trigger nusav1.JobRunTrigger, fingerprint []byte) (*nusav1.JobRun, error) {
	k := state.JobKey{Namespace: of.Namespace, Name: r.name}
	if err := submit(t, k, r); err != nil {
		return nil, err
	}
	return note(t, of, r.name, r.at, trigger, fingerprint)
}

// note stores that a run has begun.
func note(t *state.Tx, of state.JobKey, name string, at time.Time, trigger nusav1.JobRunTrigger, fingerprint []byte) (*nusav1.JobRun, error) {
	run := &nusav1.JobRun{Name: name, Time: timestamppb.New(at), Trigger: trigger, State: nusav1.JobRunState_JOB_RUN_STATE_ACTIVE, Began: timestamppb.Now()}
	return run, state.PutOther(t, runKey(of, name), &nusav1.RunRecord{Run: run, Fingerprint: fingerprint})
}
