package jobhistory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

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

// Target returns the version to which a revert goes back, and its spec: the version with a number or a tag, or
// else the latest earlier one that ran completely, if there is one with another spec than the present version.
// If none ran completely, it is the version before the present one.
func (j *Job) Target(name string) (*nusav1.JobVersion, *nusav1.JobSpec, error) {
	to, err := j.target(name)
	if err != nil {
		return nil, nil, err
	}
	spec, err := j.Spec(to)
	return to, spec, err
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

// Reverted completes the response of the submit with which a job went back to a version. asked is the number or
// the tag that the request had.
func (j *Job) Reverted(resp *nusav1.SubmitResponse, to *nusav1.JobVersion, asked string) *nusav1.SubmitResponse {
	out := proto.CloneOf(resp)
	out.RevertedTo = to.GetVersion()
	if asked != "" || to.GetComplete() {
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

// NoStages is the error of a call that steers the rollout of a region's own job.
func NoStages(name string) error {
	return rpcerr.Invalid(&nusav1.Problem{
		Field: "job.region", Reason: nusav1.Reason_REASON_UNSUPPORTED,
		Message: fmt.Sprintf("the rollout of a region's own job has no canaries and no pauses, so it cannot be paused, resumed, promoted or failed: `nusa job revert %s` goes back to an earlier version", name),
	})
}
