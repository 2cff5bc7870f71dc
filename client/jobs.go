package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Submit stores a job. The job is durable when Submit returns. A request without an idempotency key
// gets a random one, so that a repetition after a broken connection does no harm.
func (c *Client) Submit(ctx context.Context, req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	if req.GetIdempotencyKey() == "" {
		req = proto.CloneOf(req)
		req.IdempotencyKey = rand.Text()
	}
	return c.Jobs().Submit(ctx, req)
}

// ErrJobFailed: the job cannot reach the wanted state: it failed, was stopped, or was purged.
var ErrJobFailed = errors.New("the job does not run")

// JobError says why a job does not run.
type JobError struct {
	// Job is the latest known state. Nil if the job was purged.
	Job *nusav1.Job
	ref *nusav1.JobRef
}

// Error says which job it is, and its state.
func (e *JobError) Error() string {
	name := e.ref.GetNamespace() + "/" + e.ref.GetName()
	if e.Job == nil {
		return fmt.Sprintf("%s: job %s was purged", ErrJobFailed, name)
	}
	return fmt.Sprintf("%s: job %s, version %d, is %s: %s", ErrJobFailed, name, e.Job.GetVersion(), e.Job.GetStatus().GetState(), e.Job.GetStatus().GetMessage())
}

// Is reports whether target is ErrJobFailed.
func (e *JobError) Is(target error) bool { return target == ErrJobFailed }

// WaitRunning waits until a job of at least the version runs, or is complete if it is a batch job,
// and returns the job. It returns a *JobError if the job fails or stops. The context bounds the
// wait. version may be 0 for any version.
func (c *Client) WaitRunning(ctx context.Context, job *nusav1.JobRef, version int64) (*nusav1.Job, error) {
	for now, err := range c.WatchJob(ctx, job) {
		if err != nil {
			return nil, err
		}
		if now.GetVersion() < version {
			continue
		}
		switch now.GetStatus().GetState() {
		case nusav1.JobState_JOB_STATE_RUNNING, nusav1.JobState_JOB_STATE_COMPLETE:
			return now, nil
		case nusav1.JobState_JOB_STATE_FAILED, nusav1.JobState_JOB_STATE_STOPPING, nusav1.JobState_JOB_STATE_STOPPED:
			return nil, &JobError{Job: now, ref: job}
		}
	}
	return nil, &JobError{ref: job}
}
