package jobhistory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/versions"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Job is a job with its stored versions.
type Job struct {
	// Name is the name of the job for people, which commands accept, too.
	Name string
	// Versions has the latest version first, which is the present one.
	Versions []*nusav1.JobVersion
	// Spec returns the spec of one of the versions. The caller may change it.
	Spec func(*nusav1.JobVersion) (*nusav1.JobSpec, error)
}

// find returns a version by its number or tag. Empty: the version before the given one.
func (j *Job) find(name string, before int64) (*nusav1.JobVersion, error) {
	var list []versions.Version
	for _, v := range j.Versions {
		list = append(list, versions.Version{Number: v.GetVersion(), Tag: v.GetTag()})
	}
	at := versions.Find(list, name)
	if name == "" {
		name = "before " + strconv.FormatInt(before, 10)
		at = slices.IndexFunc(list, func(v versions.Version) bool { return v.Number < before })
	}
	if at < 0 {
		return nil, rpcerr.NotFound("version", name, fmt.Sprintf("job %s has no stored version %s: `nusa job history %s` lists them", j.Name, name, j.Name))
	}
	return j.Versions[at], nil
}

// Diff returns the difference that a request asks for.
func (j *Job) Diff(req *nusav1.JobDiffRequest) (*nusav1.JobDiff, error) {
	to, err := j.find(cmp.Or(req.GetTo(), strconv.FormatInt(j.Versions[0].GetVersion(), 10)), 0)
	if err != nil {
		return nil, err
	}
	from, err := j.find(req.GetFrom(), to.GetVersion())
	if err != nil {
		return nil, err
	}
	before, err := j.Spec(from)
	if err != nil {
		return nil, err
	}
	after, err := j.Spec(to)
	if err != nil {
		return nil, err
	}
	job.Default(before)
	job.Default(after)
	return &nusav1.JobDiff{From: from.GetVersion(), To: to.GetVersion(), Lines: job.Diff(before, after)}, nil
}

// Revert submits the spec of an earlier version again: the version with a number or a tag, or else the latest
// earlier one that ran completely, if there is one with another spec than the present version. If none ran
// completely, it is the version before the present one. A retry with an idempotency key returns the first result.
func (j *Job) Revert(req *nusav1.RevertJobRequest, submit func(*nusav1.SubmitRequest) (*nusav1.SubmitResponse, error)) (*nusav1.SubmitResponse, error) {
	to, err := j.target(req.GetTo())
	if err != nil {
		return nil, err
	}
	again := &nusav1.SubmitRequest{CheckRevision: req.GetCheckRevision(), IdempotencyKey: req.GetIdempotencyKey()}
	if again.Spec, err = j.Spec(to); err != nil {
		return nil, err
	}
	out, err := submit(again)
	if status.Code(err) == codes.AlreadyExists && req.GetTo() == "" && req.GetIdempotencyKey() != "" {
		if out, to := j.retried(again, submit); to != nil {
			return j.reverted(out, to, ""), nil
		}
	}
	if err != nil {
		return nil, err
	}
	return j.reverted(out, to, req.GetTo()), nil
}

// retried returns the response of a revert that has made the present version, and the version to which it went back.
// The present version has changed the target of the same request, so the key is tried with the present spec. nil: the
// key belongs to another request.
func (j *Job) retried(again *nusav1.SubmitRequest, submit func(*nusav1.SubmitRequest) (*nusav1.SubmitResponse, error)) (*nusav1.SubmitResponse, *nusav1.JobVersion) {
	present, err := j.Spec(j.Versions[0])
	if err != nil {
		return nil, nil
	}
	for _, v := range j.Versions[1:] {
		spec, err := j.Spec(v)
		if err != nil || !proto.Equal(spec, present) {
			continue
		}
		again.Spec = spec
		out, err := submit(again)
		if err != nil || out.GetVersion() != j.Versions[0].GetVersion() {
			return nil, nil
		}
		return out, v
	}
	return nil, nil
}

func (j *Job) target(name string) (out *nusav1.JobVersion, err error) {
	if name != "" {
		return j.find(name, 0)
	}
	present, err := j.Spec(j.Versions[0])
	if err != nil {
		return nil, err
	}
	for _, v := range j.Versions[1:] {
		if !v.GetComplete() {
			continue
		}
		spec, err := j.Spec(v)
		if err != nil {
			return nil, err
		}
		if !proto.Equal(spec, present) {
			return v, nil
		}
		out = cmp.Or(out, v)
	}
	if out != nil {
		return out, nil
	}
	return j.find("", j.Versions[0].GetVersion())
}

// reverted completes the response of the submit with which a job went back to a version. asked is the number or
// the tag that the request had.
func (j *Job) reverted(resp *nusav1.SubmitResponse, to *nusav1.JobVersion, asked string) *nusav1.SubmitResponse {
	out := proto.CloneOf(resp)
	out.RevertedTo = to.GetVersion()
	if asked != "" {
		return out
	}
	if to.GetComplete() {
		if v := j.passedOver(to); v != nil {
			out.Warnings = append(out.Warnings, fmt.Sprintf("version %d is later, and it is not known whether it ran completely: `nusa job revert %s --to %d` goes back to it",
				v.GetVersion(), j.Name, v.GetVersion()))
		}
		return out
	}
	known := "it is not known to have run completely"
	if to.GetFailed() != "" {
		known = "it failed: " + to.GetFailed()
	}
	out.Warnings = append(out.Warnings, fmt.Sprintf("no earlier version is known to have run completely, so version %d was submitted again, and %s: `nusa job history %s` lists the versions",
		to.GetVersion(), known, j.Name))
	return out
}

// passedOver returns the latest version between the present one and that to which a revert went back, if it is not known
// to have failed or to have run completely.
func (j *Job) passedOver(to *nusav1.JobVersion) *nusav1.JobVersion {
	for _, v := range j.Versions[1:] {
		if v.GetVersion() <= to.GetVersion() {
			break
		}
		if v.GetFailed() == "" && !v.GetComplete() {
			return v
		}
	}
	return nil
}

// NoStages is the error of a call that steers the rollout of a region's own job.
func NoStages(name string) error {
	return rpcerr.Invalid(&nusav1.Problem{
		Field: "job.region", Reason: nusav1.Reason_REASON_UNSUPPORTED,
		Message: fmt.Sprintf("the rollout of a region's own job has no canaries and no pauses, so it cannot be paused, resumed, promoted or failed: `nusa job revert %s` goes back to an earlier version", name),
	})
}
