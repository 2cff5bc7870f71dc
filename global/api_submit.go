package global

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	maxIdempotencyKey = 128
	idempotencyTTL    = 24 * time.Hour
	auditTTL          = 30 * 24 * time.Hour
)

// ErrAnswered ends a request whose idempotency key was used before: the
// answer is the one of then.
var ErrAnswered = errors.New("answered before")

// Submit implements nusav1.JobsServer.
func (j *jobsAPI) Submit(ctx context.Context, req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	a, err := j.s.current()
	if err != nil {
		return nil, err
	}
	resp, err := a.submit(ctx, req)
	return resp, apiError(err)
}

// submit stores a job.
func (a *active) submit(ctx context.Context, req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	finish, err := a.beginSubmit(ctx, req)
	if err != nil {
		return nil, err
	}
	return finish(ctx)
}

type finishSubmit func(context.Context) (*nusav1.SubmitResponse, error)

// beginSubmit judges everything about the input, so that a refusal changes
// nothing, and queues the write. Submits take effect in the order in which
// they began.
func (a *active) beginSubmit(ctx context.Context, req *nusav1.SubmitRequest) (finishSubmit, error) {
	spec := req.GetSpec()
	if err := a.checkSpec(spec); err != nil {
		return nil, err
	}
	key := req.GetIdempotencyKey()
	if len(key) > maxIdempotencyKey || strings.ContainsAny(key, "/\x00") {
		return nil, invalid("idempotency_key", fmt.Sprintf("must be at most %d bytes without a slash", maxIdempotencyKey))
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the job: %w", err)
	}
	var fingerprint []byte
	if key != "" {
		fingerprint = fingerprintOf(encoded, req.GetCheckRevision(), req.GetAgain())
		if resp, err := a.answeredBefore(ctx, key, fingerprint); resp != nil || err != nil {
			return func(context.Context) (*nusav1.SubmitResponse, error) { return resp, err }, nil
		}
	}
	k := KeyOf(spec)
	var resp *nusav1.SubmitResponse
	wait := a.commit.Begin(func(t *Tx) error {
		var err error
		if resp, err = t.Submit(k, req, encoded); err != nil {
			return err
		}
		if key == "" {
			return nil
		}
		return t.RecordAnswer(key, fingerprint, resp)
	})
	return func(ctx context.Context) (*nusav1.SubmitResponse, error) {
		revision, err := wait(ctx)
		switch {
		case errors.Is(err, ErrAnswered):
			if resp, err := a.answeredBefore(ctx, key, fingerprint); resp != nil || err != nil {
				return resp, err
			}
			// It was used so long ago that the store has forgotten it.
			a.st.ForgetAnswer(idemPrefix + key)
			return a.submit(ctx, req)
		case err != nil:
			return nil, err
		}
		a.submitted(k, resp, revision)
		resp.Warnings = append(resp.Warnings, job.Warnings(spec)...)
		return resp, nil
	}, nil
}

func (a *active) submitted(k JobKey, resp *nusav1.SubmitResponse, revision int64) {
	if resp.GetRevision() == 0 {
		resp.Revision = revision
	}
	if resp.GetChanged() {
		a.st.Events.Add("job.submitted", k.String(), "version %d", resp.GetVersion())
		a.log.Info("job submitted", "job", k.String(), "version", resp.GetVersion(), "revision", revision)
	}
}

// checkSpec fills in the defaults and judges a spec, with every fault named.
func (a *active) checkSpec(spec *nusav1.JobSpec) error {
	if spec == nil {
		return invalid("spec", "is required")
	}
	if n := proto.Size(spec); n > job.MaxSize {
		return invalid("spec", fmt.Sprintf("has %d bytes, at most %d are taken", n, job.MaxSize))
	}
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		return err
	}
	if problems := job.Unsupported(spec); len(problems) > 0 {
		return problems
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	problems := job.UnknownRegions(spec, a.st.RegionNames())
	for i := range problems {
		problems[i].Message += " (regions: " + topo.ListNames(a.st.RegionNames()) + ")"
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// Submit puts the job, unless the stored one is the same and goes on. It
// decides whether a run begins, see Job.run.
func (t *Tx) Submit(k JobKey, req *nusav1.SubmitRequest, encoded []byte) (*nusav1.SubmitResponse, error) {
	old, rev := t.Job(k)
	if err := CheckRevision("job "+k.String(), req.GetCheckRevision(), old != nil, rev); err != nil {
		return nil, err
	}
	if err := mayBecome(k, old, req.GetSpec()); err != nil {
		return nil, err
	}
	ended := t.Ended(k)
	if err := mayRunAgain(k, req, old, ended); err != nil {
		return nil, err
	}
	present := old != nil && !old.GetJob().GetStopped()
	if present && !req.GetAgain() && bytes.Equal(t.spec(k), encoded) {
		return &nusav1.SubmitResponse{Version: old.GetJob().GetVersion(), Revision: rev, Warnings: job.EndedAlready(ended)}, nil
	}
	rec := &nusav1.JobRecord{Job: &nusav1.Job{
		Spec: req.GetSpec(), Version: old.GetJob().GetVersion() + 1, Submitted: timestamppb.New(time.Now()),
	}}
	if present && ended == nusav1.JobState_JOB_STATE_UNSPECIFIED { // it goes on
		rec.Job.Run, rec.Since = RunOf(old, rev), Since(old, rec.GetJob())
		if err := t.keepHealthy(k, old, rev, req.GetSpec()); err != nil {
			return nil, err
		}
	} else if err := t.dropDone(k); err != nil {
		return nil, err
	}
	if err := t.PutJob(k, rec); err != nil {
		return nil, err
	}
	if err := t.Audit("job.submitted", k.String(), fmt.Sprintf("version %d", rec.GetJob().GetVersion())); err != nil {
		return nil, err
	}
	return &nusav1.SubmitResponse{Version: rec.GetJob().GetVersion(), Changed: true}, nil
}

// dropMost is how many slots a submit drops at most, so that it fits into a
// transaction. The placer rewrites the others, for the regions that have them.
const dropMost = 100

// dropDone drops done slots of a run that has ended: nothing runs in them.
func (t *Tx) dropDone(k JobKey) error {
	var done []region.Change
	for _, s := range t.Slots(k, "") {
		if s.State == region.Done {
			done = append(done, region.Change{Delete: true, Slot: s})
		}
	}
	slices.SortFunc(done, func(a, b region.Change) int { return strings.Compare(a.Slot.Key(), b.Slot.Key()) })
	return t.ChangeSlots(done[:min(len(done), dropMost)])
}

// Since is JobRecord.since of a job that goes on in a new version.
func Since(old *nusav1.JobRecord, next *nusav1.Job) map[string]int64 {
	out := map[string]int64{}
	was := old.GetJob().GetSpec()
	for name, g := range next.GetSpec().GetGroups() {
		before, version := was.GetGroups()[name], old.GetSince()[name]
		if before == nil || was.GetType() != next.GetSpec().GetType() || job.GroupHash(before) != job.GroupHash(g) {
			version = next.GetVersion()
		}
		if version != 0 {
			out[name] = version
		}
	}
	return out
}

// mayBecome judges a new version: an index of a system job is a node, of others it
// is a number, and the slots of one take the place of the other's in a region.
func mayBecome(k JobKey, old *nusav1.JobRecord, spec *nusav1.JobSpec) error {
	const system = nusav1.JobType_JOB_TYPE_SYSTEM
	was := old.GetJob().GetSpec().GetType()
	if old == nil || (was == system) == (spec.GetType() == system) {
		return nil
	}
	how := "is no system job and cannot become one"
	if was == system {
		how = "is a system job and cannot become another"
	}
	return status.Errorf(codes.FailedPrecondition, "job %s %s: stop it with --purge and run this once it is forgotten, or give this one another name", k, how)
}

// mayRunAgain judges SubmitRequest.again.
func mayRunAgain(k JobKey, req *nusav1.SubmitRequest, old *nusav1.JobRecord, ended nusav1.JobState) error {
	switch {
	case !req.GetAgain():
		return nil
	case req.GetSpec().GetType() != nusav1.JobType_JOB_TYPE_BATCH:
		return status.Errorf(codes.FailedPrecondition, "job %s is no batch job: stop it, then run it", k)
	case old != nil && !old.GetJob().GetStopped() && ended == nusav1.JobState_JOB_STATE_UNSPECIFIED:
		return status.Errorf(codes.FailedPrecondition, "job %s has not ended: wait until it has, or stop it first", k)
	}
	return nil
}

// Ended says how a batch job ended whose every instance has; unspecified for
// all others. Its slots say it for good, what the regions said last a moment
// earlier.
func (t *Tx) Ended(k JobKey) nusav1.JobState {
	rec, _ := t.Job(k)
	stored := rec.GetJob()
	if stored.GetSpec().GetType() != nusav1.JobType_JOB_TYPE_BATCH || stored.GetStopped() {
		return nusav1.JobState_JOB_STATE_UNSPECIFIED
	}
	left, failed := int32(0), false
	for _, g := range stored.GetSpec().GetGroups() {
		left += g.GetCount()
	}
	some := left > 0
	for _, s := range t.Slots(k, "") {
		if s.State == region.Done && s.Desired == region.DesiredRun && s.OfRun(RunOf(rec, t.State.revisionOf(k))) && !obsolete(rec, s) {
			left, failed = left-int32(s.Count()), failed || s.Reason != ""
		}
	}
	switch j := t.State.Jobs[k]; {
	case some && left <= 0 && failed:
		return nusav1.JobState_JOB_STATE_FAILED
	case some && left <= 0:
		return nusav1.JobState_JOB_STATE_COMPLETE
	case j != nil && j.Record == rec:
		if s := j.Status(); HasEnded(s.GetState()) && allEnded(s) {
			return s.GetState()
		}
	}
	return nusav1.JobState_JOB_STATE_UNSPECIFIED
}

// obsolete says that what is done of a slot is other work than its group's.
func obsolete(rec *nusav1.JobRecord, s region.Slot) bool {
	return s.JobVersion < rec.GetSince()[s.Group]
}

// revisionOf is the revision of a job's stored record.
func (st *State) revisionOf(k JobKey) int64 {
	_, rev := st.JobRecord(k)
	return rev
}

// CheckRevision is the check of SubmitRequest.check_revision.
func CheckRevision(what string, check int64, exists bool, revision int64) error {
	switch {
	case check == 0, check == -1 && !exists, check > 0 && exists && check == revision:
		return nil
	case check == -1:
		return status.Errorf(codes.Aborted, "%s exists already, at revision %d", what, revision)
	case !exists:
		return status.Errorf(codes.Aborted, "%s does not exist, but revision %d was asked for", what, check)
	}
	return status.Errorf(codes.Aborted, "%s is at revision %d, not %d: somebody changed it", what, revision, check)
}

// fingerprintOf tells requests under one idempotency key apart.
func fingerprintOf(encoded []byte, check int64, again bool) []byte {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(check)))
	if again {
		h.Write([]byte("again"))
	}
	h.Write(encoded)
	return h.Sum(nil)
}

// answeredBefore looks an idempotency key up; nil without an error when it is
// new.
func (a *active) answeredBefore(ctx context.Context, key string, fingerprint []byte) (*nusav1.SubmitResponse, error) {
	kv, ok, _, err := a.store.Get(ctx, idemPrefix+key)
	if err != nil || !ok {
		return nil, err
	}
	rec := new(nusav1.IdempotencyRecord)
	if err := Decode(kv, rec); err != nil {
		return nil, err
	}
	if !bytes.Equal(rec.GetFingerprint(), fingerprint) {
		return nil, status.Errorf(codes.AlreadyExists, "idempotency key %q was used for another request", key)
	}
	if rec.GetResponse().GetRevision() == 0 {
		rec.Response.Revision = kv.ModRevision
	}
	return rec.GetResponse(), nil
}

// RecordAnswer remembers the answer to a key with the write that it is about.
func (t *Tx) RecordAnswer(key string, fingerprint []byte, resp *nusav1.SubmitResponse) error {
	storeKey := idemPrefix + key
	if _, used := t.find(storeKey); used || t.State.recentKeys.has(storeKey) {
		return ErrAnswered
	}
	return t.putNew(storeKey, &nusav1.IdempotencyRecord{Fingerprint: fingerprint, Response: proto.CloneOf(resp)}, idempotencyTTL)
}

// Audit notes who changed what, for a month. A number keeps apart what happens
// within one tick of the clock, in several transactions too: a key that is taken
// would refuse the whole change.
func (t *Tx) Audit(kind, subject, message string) error {
	now := time.Now()
	t.State.audits++
	key := fmt.Sprintf("%s%020d-%s-%06d", AuditPrefix, now.UnixNano(), t.State.Epoch, t.State.audits)
	return t.putNew(key, &nusav1.Event{Time: timestamppb.New(now), Type: kind, Subject: subject, Message: message}, auditTTL)
}

// SubmitMany implements nusav1.JobsServer: submits are under way together, so
// they share transactions.
func (j *jobsAPI) SubmitMany(stream grpc.BidiStreamingServer[nusav1.SubmitRequest, nusav1.SubmitManyResponse]) error {
	a, err := j.s.current()
	if err != nil {
		return err
	}
	return serve.SubmitMany(stream, a.ctx.Done(), apiError(ErrNotActive), func(ctx context.Context, req *nusav1.SubmitRequest) serve.FinishSubmit {
		finish, err := a.beginSubmit(ctx, req)
		return func(ctx context.Context) (*nusav1.SubmitResponse, error) {
			if err != nil {
				return nil, apiError(err)
			}
			resp, err := finish(ctx)
			return resp, apiError(err)
		}
	})
}
