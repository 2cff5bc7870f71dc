package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/versions"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// Submission is a checked request to store a job.
type Submission struct {
	Spec *Spec
	// Encoded is the encoded spec. Hash is its SHA-256, for the audit trail.
	Encoded, Hash []byte
	// CheckRevision and Again are as in nusav1.SubmitRequest.
	CheckRevision int64
	Again         bool
	// Tag is as in nusav1.SubmitRequest.
	Tag string
}

// Submit stores the job of a request: see SubmitJob.
func (t *Tx) Submit(k JobKey, req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(req.GetSpec())
	if err != nil {
		return nil, fmt.Errorf("encode the job: %w", err)
	}
	hash := sha256.Sum256(encoded)
	return t.SubmitJob(k, Submission{NewSpec(req.GetSpec()), encoded, hash[:], req.GetCheckRevision(), req.GetAgain(), req.GetTag()})
}

// SubmitJob stores a job, unless the stored job is the same and still runs. It also decides whether
// a new run begins: see Job.run in job.proto.
func (t *Tx) SubmitJob(k JobKey, s Submission) (*nusav1.SubmitResponse, error) {
	old, rev, err := Stored(t, k)
	if err != nil {
		return nil, err
	}
	if err := CheckRevision("job "+k.String(), s.CheckRevision, old != nil, rev); err != nil {
		return nil, err
	}
	if err := checkTypeChange(k, old, s.Spec.job.Type); err != nil {
		return nil, err
	}
	ended := nusav1.JobState_JOB_STATE_UNSPECIFIED
	if old != nil {
		ended = t.batchEnd(k)
	}
	if err := checkRunAgain(k, s, old, ended); err != nil {
		return nil, err
	}
	present := old != nil && !old.Stopped()
	if present && !s.Again && bytes.Equal(old.encoded(), s.Encoded) {
		if s.Tag != "" {
			if _, err := t.TagVersion(k, old.Version(), s.Tag); err != nil {
				return nil, err
			}
		}
		return &nusav1.SubmitResponse{Version: old.Version(), Revision: rev, Warnings: job.EndedAlready(ended)}, nil
	}
	warnings := missingDrivers(t.State, s.Spec)
	err = t.checkRoom(k, len(s.Encoded))
	if err == nil {
		err = t.checkTemplates(k, s.Spec)
	}
	if err != nil {
		if !t.dry {
			return nil, err
		}
		warnings = append(warnings, "a submit is refused now: "+status.Convert(err).Message())
	}
	rec := &nusav1.JobRecord{Job: &nusav1.Job{Version: old.Version() + 1, Submitted: timestamppb.New(time.Now())}}
	if present && ended == nusav1.JobState_JOB_STATE_UNSPECIFIED { // the run continues
		next := &nusav1.JobSpec{}
		if err := proto.Unmarshal(s.Encoded, next); err != nil {
			return nil, fmt.Errorf("decode the job: %w", err)
		}
		rec.Job.Run, rec.Since = old.Run(rev), Since(old, next, rec.GetJob().GetVersion())
		if err := t.keepHealthy(k, old, rev, next); err != nil {
			return nil, err
		}
	} else if err := t.dropDone(k); err != nil {
		return nil, err
	}
	if err := t.followEarlier(k, old, rev, s, rec); err != nil {
		return nil, err
	}
	stored, err := s.Spec.record(rec, k.Name, s.Encoded)
	if err != nil {
		return nil, err
	}
	if err := t.putRecord(k, stored); err != nil {
		return nil, err
	}
	if _, known := t.State.Jobs[k]; !known && old == nil && stored.Type() != place.System {
		t.submitFresh(k, stored)
	}
	e := audit.Entry{Verb: "submit", Kind: "job", Namespace: k.Namespace, Name: k.Name, Reason: "version " + strconv.FormatInt(stored.Version(), 10), After: s.Hash}
	if old != nil {
		before := sha256.Sum256(old.encoded())
		e.Before = before[:]
	}
	if err := t.Audit(e); err != nil {
		return nil, err
	}
	t.EventText("", "job.submitted", k.String(), versionText(stored.Version()))
	return &nusav1.SubmitResponse{Version: stored.Version(), Changed: true, Warnings: warnings}, nil
}

// versionText is the message of the event about a new version.
type versionText int64

// String returns, for example, "version 3".
func (v versionText) String() string { return "version " + strconv.FormatInt(int64(v), 10) }

// NewDryTx returns a transaction that is never stored. In it, a submit without room for it gets a
// warning instead of a refusal.
func NewDryTx(st *State) *Tx {
	t := NewTx(st)
	t.dry = true
	return t
}

// CheckRoom refuses records of another package, of so many bytes, for which a submit would find no room.
func CheckRoom(t *Tx, k JobKey, size int) error { return t.checkRoom(k, size) }

// checkRoom refuses a submit for which there is no room.
func (t *Tx) checkRoom(k JobKey, size int) error {
	grows, version := int64(size), false
	if old, _ := t.Job(k); old != nil {
		version = true
		grows -= int64(old.specSize())
	} else {
		grows += room.JobOverhead
	}
	ask := room.Ask{Namespace: k.Namespace, Grows: grows, Size: int64(size), Version: version}
	ask.Pending, ask.PendingHere = t.pendingJobs(k.Namespace)
	no := t.State.Room.Check(ask)
	if no == nil {
		return nil
	}
	if no.Later {
		return rpcerr.Error{Code: codes.Unavailable, Message: no.Error(), RetryAfter: RetryAfter}.Err()
	}
	return rpcerr.Error{
		Code: codes.ResourceExhausted, Message: no.Error(), Reason: rpcerr.ReasonStoreFull,
		Metadata: map[string]string{rpcerr.KeyUsed: strconv.FormatInt(no.Used, 10), rpcerr.KeyLimit: strconv.FormatInt(no.Limit, 10)},
	}.Err()
}

// pendingJobs returns by how many bytes the submits of the transaction make jobs grow: in all namespaces, and in
// one.
func (t *Tx) pendingJobs(namespace string) (all, here int64) {
	for i := range t.changes {
		next := t.changes[i].job
		if next == nil {
			continue
		}
		k := jobOfKey(t.changes[i].key, jobPrefix)
		grows := int64(next.specSize()) + next.earlier + room.JobOverhead
		if j := t.State.Jobs[k]; j != nil && j.Record != nil {
			grows -= int64(j.Record.specSize()) + j.Record.earlier + room.JobOverhead
		}
		all += grows
		if k.Namespace == namespace {
			here += grows
		}
	}
	return all, here
}

// checkTemplates refuses a further job that begins runs if there are too many.
func (t *Tx) checkTemplates(k JobKey, next *Spec) error {
	if _, is := t.State.Templates.Lines[k]; is || !next.template {
		return nil
	}
	n := len(t.State.Templates.Lines)
	for i := range t.changes {
		if !t.changes[i].job.Template() {
			continue
		}
		other := jobOfKey(t.changes[i].key, jobPrefix)
		if _, is := t.State.Templates.Lines[other]; !is && other != k {
			n++
		}
	}
	if n < MaxTemplates {
		return nil
	}
	return rpcerr.Error{Code: codes.ResourceExhausted, Message: "there are 10,000 jobs with schedule, parameterized or workflow, the most there may be: stop one with --purge"}.Err()
}

// maxDropped bounds the slots that a submit removes, so that the request fits into a transaction.
// The placer rewrites the remaining slots.
const maxDropped = 100

// dropDone removes done slots of a run that has ended, because nothing runs in them.
func (t *Tx) dropDone(k JobKey) error {
	var done []region.Change
	for _, s := range t.Slots(k, "") {
		if s.State == region.Done {
			done = append(done, region.Change{Delete: true, Slot: s})
		}
	}
	slices.SortFunc(done, func(a, b region.Change) int { return strings.Compare(a.Slot.Key(), b.Slot.Key()) })
	return t.ChangeSlots(done[:min(len(done), maxDropped)])
}

// keepHealthy stores the previous version as the healthy one under these conditions: the new
// version has auto_revert or canaries, and the previous one ran with all instances. Without that, the new
// version would have no version to revert to.
func (t *Tx) keepHealthy(k JobKey, old *Record, rev int64, next *nusav1.JobSpec) error {
	j := t.State.Jobs[k]
	if j == nil || j.Record != old || !keepsHealthy(next) || old.Type() == place.Batch {
		return nil
	}
	see := t.State.Sight()
	decision, _ := j.Rollout(see).Decide()
	// A rollout that is done leaves canaries that stop. Until they have, not every instance runs, but every one ran the version.
	_, ran := j.HowItRan(old, see)
	if decision == place.RolloutSetHealthy || ran && runsInstances(old.Spec()) && j.HealthyVersion(old) != old.Version() {
		return t.PutHealthy(k, old, old.Run(rev))
	}
	return nil
}

// runsInstances reports whether a version has instances, and has some in each group with auto_revert.
func runsInstances(spec *nusav1.JobSpec) bool {
	every := spec.GetType() == nusav1.JobType_JOB_TYPE_SYSTEM // on every node
	some := every
	for _, g := range spec.GetGroups() {
		if g.GetCount() == 0 && job.AutoRevert(g) && !every {
			return false
		}
		some = some || g.GetCount() > 0
	}
	return some
}

// Since returns JobRecord.since of a job whose run continues with a new version: for each group,
// the version in which its work last changed.
func Since(old *Record, next *nusav1.JobSpec, nextVersion int64) map[string]int64 {
	out := map[string]int64{}
	was := old.Spec()
	for name, g := range next.GetGroups() {
		before, version := was.GetGroups()[name], old.since[name]
		if before == nil || was.GetType() != next.GetType() || changesWork(before, g, was.GetType()) {
			version = nextVersion
		}
		if version != 0 {
			out[name] = version
		}
	}
	return out
}

// changesWork reports whether running instances of a group must be replaced. Agents know only the
// leases that bound an instance at its start, so other leases need another attempt. Batch instances
// are not replaced for that reason, so completed work still counts.
func changesWork(before, after *nusav1.Group, kind nusav1.JobType) bool {
	if job.GroupHash(before) != job.GroupHash(after) {
		return true
	}
	return kind != nusav1.JobType_JOB_TYPE_BATCH && job.BindingOf(before, false) != job.BindingOf(after, false)
}

// checkTypeChange refuses the change of a job into a system job, and the reverse. An index of a
// system job is a node, and an index of another job is a number, but both kinds of slots would have
// the same keys in a region.
func checkTypeChange(k JobKey, old *Record, next place.JobType) error {
	was := old.Type() == place.System
	if old == nil || was == (next == place.System) {
		return nil
	}
	how := "is no system job and cannot become one"
	if was {
		how = "is a system job and cannot become another"
	}
	return status.Errorf(codes.FailedPrecondition, "job %s %s: stop that job with --purge and run this one after the purge, or give this one another name", k, how)
}

// checkRunAgain checks SubmitRequest.again.
func checkRunAgain(k JobKey, s Submission, old *Record, ended nusav1.JobState) error {
	switch {
	case !s.Again:
		return nil
	case s.Spec.job.Type != place.Batch:
		return status.Errorf(codes.FailedPrecondition, "job %s is no batch job: stop it, then run it", k)
	case old != nil && !old.Stopped() && ended == nusav1.JobState_JOB_STATE_UNSPECIFIED:
		return status.Errorf(codes.FailedPrecondition, "job %s has not ended: wait until it has, or stop it first", k)
	}
	return nil
}

// batchEnd returns how a batch job ended, if every instance has ended. For all other jobs it
// returns JOB_STATE_UNSPECIFIED. Done slots are proof of the end. The regions' latest summaries
// show the end a moment earlier.
func (t *Tx) batchEnd(k JobKey) nusav1.JobState {
	if state, past := pastEnd(t, k); past {
		return state
	}
	rec, _ := t.Job(k)
	if rec.Type() != place.Batch || rec.Stopped() {
		return nusav1.JobState_JOB_STATE_UNSPECIFIED
	}
	_, revision := t.State.JobRecord(k)
	left, failed := int32(0), false
	for _, g := range rec.spec.job.Groups {
		left += int32(g.Count)
	}
	some := left > 0
	for _, s := range t.Slots(k, "") {
		if s.State == region.Done && s.Desired == region.DesiredRun && s.OfRun(rec.Run(revision)) && !rec.obsolete(s.JobVersion, s.Group) {
			left, failed = left-int32(s.Count()), failed || s.Reason != ""
		}
	}
	switch j := t.State.Jobs[k]; {
	case some && left <= 0 && failed:
		return nusav1.JobState_JOB_STATE_FAILED
	case some && left <= 0:
		return nusav1.JobState_JOB_STATE_COMPLETE
	case j != nil && j.Record == rec:
		s := j.Status(t.State.Sight())
		if jobstatus.HasEnded(s.GetState()) && allEnded(s) {
			return s.GetState()
		}
	}
	return nusav1.JobState_JOB_STATE_UNSPECIFIED
}

// allEnded reports whether no instance can change any more.
func allEnded(s *nusav1.JobStatus) bool {
	for _, g := range s.GetGroups() {
		if c := g.GetCounts(); c.GetPending()+c.GetStarting()+c.GetRunning()+c.GetLost() > 0 {
			return false
		}
	}
	return true
}

// followEarlier stores what a submit stores about the version before, and completes rec.
func (t *Tx) followEarlier(k JobKey, old *Record, rev int64, s Submission, rec *nusav1.JobRecord) error {
	if err := t.keepVersion(k, old, s.Encoded, s.Tag, rec); err != nil {
		return err
	}
	return beginRollout(t, k, old, rev, s, rec)
}

// inPlaceOf returns what a version changed in place, if it is the present one of a job.
func inPlaceOf(j *Job, of *Record) []*nusav1.InPlaceChange {
	if j == nil || j.Record != of {
		return nil
	}
	return j.InPlace()
}

// keepVersion stores the spec of the version that rec replaces, and completes rec. next is the encoded
// spec of rec, and tag the tag of its version. A new job, and the same spec again, store nothing. A
// version that takes more than versions.MaxBytes is not stored.
func (t *Tx) keepVersion(k JobKey, old *Record, next []byte, tag string, rec *nusav1.JobRecord) error {
	rec.Tag = tag
	if old == nil {
		return nil
	}
	head := old.decodedHead()
	rec.Versions = head.GetVersions()
	same := bytes.Equal(old.encoded(), next)
	if tag != "" && (slices.ContainsFunc(rec.Versions, func(v *nusav1.StoredVersion) bool { return v.GetTag() == tag }) || head.GetTag() == tag && !same) {
		return tagTaken(k, tag)
	}
	if same {
		rec.Tag = cmp.Or(tag, head.GetTag())
		return nil
	}
	packed, err := compact.Pack(old.encoded())
	if err != nil || len(packed) > versions.MaxBytes {
		return err
	}
	now := time.Now()
	failed, complete := t.State.Jobs[k].HowItRan(old, t.State.Sight())
	all := append(slices.Clone(rec.Versions), &nusav1.StoredVersion{
		Failed: failed, Complete: complete, Version: old.Version(), Submitted: head.GetJob().GetSubmitted(), Replaced: timestamppb.New(now), Bytes: int64(len(packed)),
		Tag: head.GetTag(), Reverted: head.GetJob().GetReverted(), InPlace: inPlaceOf(t.State.Jobs[k], old),
	})
	rec.Versions = nil
	kept := versions.Keep(versionsOf(all), now)
	for i, v := range all {
		if slices.Contains(kept, i) {
			rec.Versions = append(rec.Versions, v)
			continue
		}
		if err := t.deleteUnchecked(VersionKey(k, v.GetVersion())); err != nil {
			return err
		}
	}
	return t.putUnchecked(VersionKey(k, old.Version()), &nusav1.VersionRecord{Spec: packed})
}

// Replace returns the record of a job that continues its run with the spec of an earlier record. It
// stores what a submit stores about the version that it replaces.
func (t *Tx) Replace(k JobKey, old *Record, rev int64, with *Record, reverted *nusav1.Reverted) (*nusav1.JobRecord, error) {
	next := &nusav1.JobRecord{Job: &nusav1.Job{
		Spec: with.Spec(), Version: old.Version() + 1, Run: old.Run(rev), Submitted: timestamppb.Now(), Reverted: reverted,
	}}
	next.Since = Since(old, next.GetJob().GetSpec(), next.GetJob().GetVersion())
	if err := t.keepVersion(k, old, with.encoded(), "", next); err != nil {
		return nil, err
	}
	return next, t.PutJob(k, next)
}

// versionsOf returns stored versions in the form of package versions.
func versionsOf(all []*nusav1.StoredVersion) (out []versions.Version) {
	for _, v := range all {
		out = append(out, versions.Version{Number: v.GetVersion(), Tag: v.GetTag(), Replaced: v.GetReplaced().AsTime()})
	}
	return out
}

// earlierBytes returns what the stored earlier versions of a job count in Room.
func earlierBytes(all []*nusav1.StoredVersion) (bytes int64) {
	for _, v := range all {
		bytes += v.GetBytes() + versions.Overhead
	}
	return bytes
}

// forgetVersions removes the specs of all earlier versions of a job.
func (t *Tx) forgetVersions(k JobKey) error {
	prefix := versionPrefix + k.String()
	return t.set(txChange{key: prefix + "/", end: prefix + "0", unchecked: true})
}

func tagTaken(k JobKey, tag string) error {
	return status.Errorf(codes.AlreadyExists, "a stored version of job %s has the tag %q: remove the tag from it first", k, tag)
}

// Versions returns the present version of a job and its stored earlier ones, the present one first.
func (r *Record) Versions() (out []*nusav1.JobVersion) {
	head := r.decodedHead()
	out = append(out, &nusav1.JobVersion{
		Version: r.Version(), Submitted: head.GetJob().GetSubmitted(), Tag: head.GetTag(), Reverted: head.GetJob().GetReverted(),
	})
	for _, v := range slices.Backward(head.GetVersions()) {
		out = append(out, &nusav1.JobVersion{
			Version: v.GetVersion(), Submitted: v.GetSubmitted(), Replaced: v.GetReplaced(), Tag: v.GetTag(), Reverted: v.GetReverted(), Bytes: v.GetBytes(),
			InPlace: v.GetInPlace(), Failed: v.GetFailed(), Complete: v.GetComplete(),
		})
	}
	return out
}

// TagVersion gives a stored version of a job a tag, or removes its tag. It changes nothing if the
// version has the tag.
func (t *Tx) TagVersion(k JobKey, version int64, tag string) (*nusav1.JobVersion, error) {
	old, rev, err := Stored(t, k)
	if err != nil {
		return nil, err
	}
	if _, past := pastEnd(t, k); past { // its stored record would make it run again
		return nil, status.Errorf(codes.FailedPrecondition, "job %s has ended and is kept as history: its versions get no other tags", k)
	}
	all := old.Versions()
	at := slices.IndexFunc(all, func(v *nusav1.JobVersion) bool { return v.GetVersion() == version })
	switch {
	case at < 0:
		return nil, status.Errorf(codes.NotFound, "version %d of job %s is not stored", version, k)
	case all[at].GetTag() == tag:
		return all[at], nil
	case tag != "" && slices.ContainsFunc(all, func(v *nusav1.JobVersion) bool { return v.GetTag() == tag }):
		return nil, tagTaken(k, tag)
	}
	next := old.Full()
	next.Job.Run = old.Run(rev)
	if at == 0 {
		next.Tag = tag
	} else {
		next.Versions[len(next.Versions)-at].Tag = tag
	}
	reason := fmt.Sprintf("tag %s for version %d", tag, version)
	if tag == "" {
		reason = fmt.Sprintf("no tag for version %d", version)
	}
	if err := t.Audit(audit.Entry{Verb: "tag", Kind: "job", Namespace: k.Namespace, Name: k.Name, Reason: reason}); err != nil {
		return nil, err
	}
	all[at].Tag = tag
	return all[at], t.PutJob(k, next)
}
