package schedules

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
)

const (
	maxKey = 128
	// mostRuns bounds the dispatched runs of a job that have not ended.
	mostRuns = 10_000
	// reference begins what an agent replaces in texts.
	reference = "${NUSA_"
)

// errRepeated: the idempotency key was used before.
var errRepeated = errors.New("the dispatch exists")

// CheckPayload checks the payload of a run of a job that takes payloads as rule says.
func CheckPayload(rule nusav1.Payload, payload []byte) error {
	switch {
	case len(payload) > job.MaxPayload:
		return invalid("payload", "has %d bytes, at most %d are allowed: put more into an artifact", len(payload), job.MaxPayload)
	case len(payload) == 0 && rule == nusav1.Payload_PAYLOAD_REQUIRED:
		return invalid("payload", "is missing: the job requires one: nusa job dispatch JOB --payload FILE")
	case len(payload) > 0 && rule == nusav1.Payload_PAYLOAD_FORBIDDEN:
		return invalid("payload", "the job takes none")
	case !utf8.Valid(payload) || bytes.ContainsRune(payload, 0):
		return invalid("payload", "is not UTF-8 text: encode it, for example with base64")
	case bytes.Contains(payload, []byte(reference)):
		return invalid("payload", "contains %s, which the agent would replace", reference)
	}
	return nil
}

// checkDispatch checks what a dispatch gives to its run.
func checkDispatch(p *nusav1.Parameterized, req *nusav1.DispatchJobRequest) error {
	if err := CheckPayload(p.GetPayload(), req.GetPayload()); err != nil {
		return err
	}
	switch {
	case len(req.GetIdempotencyKey()) > maxKey || strings.ContainsRune(req.GetIdempotencyKey(), 0):
		return invalid("idempotency_key", "must be at most %d bytes", maxKey)
	}
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(req.GetMeta())) {
		value := req.GetMeta()[name]
		sum += len(name) + len(value)
		switch {
		case !slices.Contains(p.GetMetaRequired(), name) && !slices.Contains(p.GetMetaOptional(), name):
			known := strings.Join(slices.Concat(p.GetMetaRequired(), p.GetMetaOptional()), ", ")
			return invalid("meta", "the job has no value %q; it has %s", name, cmp.Or(known, "none"))
		case len(value) > job.MaxMeta:
			return invalid("meta", "%s has %d bytes, at most %d are allowed: use the payload", name, len(value), job.MaxMeta)
		case !utf8.ValidString(value) || strings.ContainsRune(value, 0) || strings.Contains(value, reference):
			return invalid("meta", "%s is not UTF-8 text without %s", name, reference)
		}
	}
	if sum > job.MaxMetaSum {
		return invalid("meta", "has %d bytes, at most %d are allowed: use the payload", sum, job.MaxMetaSum)
	}
	for _, name := range p.GetMetaRequired() {
		if _, given := req.GetMeta()[name]; !given {
			return invalid("meta", "%s is missing: the job requires it: nusa job dispatch JOB --meta %s=VALUE", name, name)
		}
	}
	return nil
}

// fingerprintOf returns a hash of what a dispatch gives to its run.
func fingerprintOf(req *nusav1.DispatchJobRequest) []byte {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(req.GetMeta())) {
		_, _ = h.Write([]byte(name + "\x00" + req.GetMeta()[name] + "\x00"))
	}
	_, _ = h.Write(req.GetPayload())
	return h.Sum(nil)
}

// dispatchName returns the name of the run of a dispatch. The same idempotency key gives the same name.
// Without a key, the name is taken with a probability of 1 in 16 million for each run of that second.
func dispatchName(of, key string, now time.Time) string {
	if key != "" {
		sum := sha256.Sum256([]byte(key))
		return of + ".k" + hex.EncodeToString(sum[:8])
	}
	id := uuid.New()
	return of + "." + now.UTC().Format("20060102-150405") + "-" + hex.EncodeToString(id[:3])
}

// Dispatch implements nusav1.SchedulesServer.
func (s *Service) Dispatch(ctx context.Context, req *nusav1.DispatchJobRequest) (*nusav1.JobRun, error) {
	if run, is, err := s.dispatchFlow(ctx, req); is {
		return run, err
	}
	b, e, err := s.found(ctx, req.GetJob(), "parameterized")
	if err != nil {
		return nil, err
	}
	b.st.Lock()
	spec := e.spec
	b.st.Unlock()
	if err := checkDispatch(spec.GetParameterized(), req); err != nil {
		return nil, err
	}
	var fingerprint []byte
	if req.GetIdempotencyKey() != "" {
		fingerprint = fingerprintOf(req)
	}
	for range recalls {
		now := time.Now()
		name := dispatchName(e.key.Name, req.GetIdempotencyKey(), now)
		r, err := checkedRun(spec, name, now, input{payload: req.GetPayload(), meta: req.GetMeta()})
		if err != nil {
			return nil, err
		}
		var run *nusav1.JobRun
		err = commitBy(ctx, b, func(t *state.Tx) (err error) {
			run, err = dispatch(t, b, e, spec, r, fingerprint)
			return err
		})
		switch {
		case errors.Is(err, errRepeated) && fingerprint == nil:
			continue // another name
		case errors.Is(err, errRepeated):
			return repeated(b, e, name, fingerprint)
		case err != nil:
			return nil, api.StatusOf(err)
		}
		return run, nil
	}
	return nil, status.Errorf(codes.Unavailable, "no free name for a run of job %s: dispatch again", e.key)
}

// commitBy is commit for a caller's request, which gets an error if too many wait.
func commitBy(ctx context.Context, b *Book, change func(*state.Tx) error) error {
	return b.recalling(ctx, func() error {
		_, err := b.term.Commit.SubmitBy(recorder.Of(ctx), change)(ctx)
		return err
	})
}

// checkedRun returns the job of a run, if the values of the dispatch leave it valid.
func checkedRun(spec *nusav1.JobSpec, name string, now time.Time, in input) (*runJob, error) {
	of := spec.GetName()
	run, err := specOf(spec, name, now, in)
	if err != nil {
		return nil, err
	}
	if err := validRun(run, of); err != nil {
		return nil, api.StatusOf(err)
	}
	return encodedRun(run, now)
}

// validRun validates the job of a run without its name and its own variables, which no job file can have.
func validRun(run *nusav1.JobSpec, of string) error {
	name := run.GetName()
	run.Name = of
	envs := map[*nusav1.Task]map[string]string{}
	for _, g := range run.GetGroups() {
		for _, t := range g.GetTasks() {
			envs[t] = t.GetEnv()
			t.Env = maps.Clone(t.GetEnv())
			maps.DeleteFunc(t.Env, func(k, _ string) bool { return strings.HasPrefix(k, "NUSA_") })
		}
	}
	err := job.Validate(run)
	run.Name = name
	for t, env := range envs {
		t.Env = env
	}
	return err
}

// dispatch adds the run of a dispatch to a transaction. spec is what the run was made from.
func dispatch(t *state.Tx, b *Book, e *entry, spec *nusav1.JobSpec, r *runJob, fingerprint []byte) (*nusav1.JobRun, error) {
	switch rec, _ := t.Job(e.key); {
	case rec == nil || rec.Stopped():
		return nil, status.Errorf(codes.FailedPrecondition, "job %s is stopped: run its file again", e.key)
	case rec != e.record || e.spec != spec:
		return nil, status.Errorf(codes.Unavailable, "job %s has just changed: dispatch again", e.key)
	case b.may() != nil:
		return nil, b.may()
	case len(e.active) >= mostRuns:
		return nil, status.Errorf(codes.ResourceExhausted, "%d runs of job %s have not ended, the most there may be: wait for the end of some", len(e.active), e.key)
	case b.total >= mostRunsOfAll:
		return nil, status.Error(codes.ResourceExhausted, errRunsOfAll.Error())
	}
	if _, changed := state.OtherOf(t, runKey(e.key, r.name)); changed || e.runs[r.name] != nil {
		return nil, errRepeated
	}
	if err := t.Audit(audit.Entry{Verb: "dispatch", Kind: "job", Namespace: e.key.Namespace, Name: e.key.Name, Reason: "run " + r.name}); err != nil {
		return nil, err
	}
	return begin(t, e.key, r, nusav1.JobRunTrigger_JOB_RUN_TRIGGER_DISPATCH, fingerprint)
}

// repeated answers the repeated use of an idempotency key.
func repeated(b *Book, e *entry, name string, fingerprint []byte) (*nusav1.JobRun, error) {
	b.st.Lock()
	defer b.st.Unlock()
	rec := e.runs[name]
	switch {
	case rec == nil: // it is in the same transaction, which is not stored yet
		return nil, status.Errorf(codes.Unavailable, "the same dispatch of job %s is being stored: try again", e.key)
	case !bytes.Equal(rec.GetFingerprint(), fingerprint):
		return nil, status.Errorf(codes.AlreadyExists, "the idempotency key was used for another dispatch of the job, %s", name)
	}
	return rec.GetRun(), nil
}
