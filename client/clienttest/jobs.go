package clienttest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Hold says whether jobs that are submitted from now on stay pending instead of running at once.
func (s *Server) Hold(hold bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = hold
}

// SetState changes the state of a job, as if its instances had changed.
func (s *Server) SetState(namespace, name string, state nusav1.JobState, message string) error {
	return s.change(func() error {
		j, err := s.job(namespace, name)
		if err != nil {
			return err
		}
		s.put(j, func(j *nusav1.Job) { j.Status = &nusav1.JobStatus{State: state, Message: message} })
		return nil
	})
}

// job returns a stored job. The caller holds the lock and must not change the job.
func (s *Server) job(namespace, name string) (*nusav1.Job, error) {
	k := key{namespace, name}
	if k.namespace == "" {
		k.namespace = "default"
	}
	if j := s.jobs[k]; j != nil {
		return j, nil
	}
	return nil, rpcerr.NotFound(rpcerr.KindJob, name, fmt.Sprintf("job %s/%s does not exist", k.namespace, name))
}

// put stores a changed copy of a job. The caller holds the lock.
func (s *Server) put(j *nusav1.Job, change func(*nusav1.Job)) *nusav1.Job {
	s.revision++
	next := proto.CloneOf(j)
	change(next)
	next.Revision = s.revision
	s.jobs[key{next.GetSpec().GetNamespace(), next.GetSpec().GetName()}] = next
	return next
}

// event stores an event. The caller holds the lock.
func (s *Server) event(kind, subject, message string) {
	n := uint64(len(s.events) + 1)
	s.events = append(s.events, &nusav1.Event{
		Token: fmt.Sprintf("clienttest-%d", n), Number: n, Log: "clienttest", Time: timestamppb.Now(), Type: kind, Subject: subject, Message: message,
	})
}

type jobs struct {
	nusav1.UnimplementedJobsServer
	s *Server
}

// Submit implements nusav1.JobsServer.
func (j jobs) Submit(_ context.Context, req *nusav1.SubmitRequest) (out *nusav1.SubmitResponse, err error) {
	spec := proto.CloneOf(req.GetSpec())
	if spec.GetName() == "" {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "name", Message: "is missing"})
	}
	if spec.GetNamespace() == "" {
		spec.Namespace = "default"
	}
	err = j.s.change(func() error {
		if done := j.s.keys[req.GetIdempotencyKey()]; done != nil && req.GetIdempotencyKey() != "" {
			out = done
			return nil
		}
		old := j.s.jobs[key{spec.GetNamespace(), spec.GetName()}]
		if check := req.GetCheckRevision(); check > 0 && old.GetRevision() != check || check == -1 && old != nil {
			return status.Errorf(codes.Aborted, "job %s/%s has revision %d, not %d", spec.GetNamespace(), spec.GetName(), old.GetRevision(), check)
		}
		if old != nil && !old.GetStopped() && proto.Equal(old.GetSpec(), spec) {
			out = &nusav1.SubmitResponse{Version: old.GetVersion(), Revision: old.GetRevision()}
			return nil
		}
		state := nusav1.JobState_JOB_STATE_RUNNING
		if j.s.hold {
			state = nusav1.JobState_JOB_STATE_PENDING
		}
		next := j.s.put(&nusav1.Job{Spec: spec}, func(n *nusav1.Job) {
			n.Version, n.Submitted, n.Status = old.GetVersion()+1, timestamppb.Now(), &nusav1.JobStatus{State: state}
		})
		out = &nusav1.SubmitResponse{Version: next.GetVersion(), Revision: next.GetRevision(), Changed: true}
		j.s.keys[req.GetIdempotencyKey()] = out
		j.s.event("job.submitted", spec.GetNamespace()+"/"+spec.GetName(), fmt.Sprintf("version %d", next.GetVersion()))
		return nil
	})
	return out, err
}

// Get implements nusav1.JobsServer.
func (j jobs) Get(_ context.Context, req *nusav1.GetJobRequest) (*nusav1.Job, error) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	return j.s.job(req.GetJob().GetNamespace(), req.GetJob().GetName())
}

// List implements nusav1.JobsServer. It returns all jobs in one page.
func (j jobs) List(_ context.Context, req *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	out := &nusav1.ListJobsResponse{}
	for k, one := range j.s.jobs {
		if req.GetNamespace() == "" || k.namespace == req.GetNamespace() {
			out.Jobs = append(out.Jobs, one)
		}
	}
	slices.SortFunc(out.Jobs, func(a, b *nusav1.Job) int {
		return strings.Compare(a.GetSpec().GetNamespace()+"/"+a.GetSpec().GetName(), b.GetSpec().GetNamespace()+"/"+b.GetSpec().GetName())
	})
	return out, nil
}

// Stop implements nusav1.JobsServer. The job stops at once.
func (j jobs) Stop(_ context.Context, req *nusav1.StopJobRequest) (out *nusav1.StopJobResponse, err error) {
	err = j.s.change(func() error {
		old, err := j.s.job(req.GetJob().GetNamespace(), req.GetJob().GetName())
		if err != nil {
			return err
		}
		next := j.s.put(old, func(n *nusav1.Job) {
			n.Stopped, n.Status = true, &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_STOPPED}
		})
		out = &nusav1.StopJobResponse{Revision: next.GetRevision()}
		k := key{next.GetSpec().GetNamespace(), next.GetSpec().GetName()}
		if req.GetPurge() {
			delete(j.s.jobs, k)
		}
		j.s.event("job.stopped", k.namespace+"/"+k.name, "")
		return nil
	})
	return out, err
}

// Watch implements nusav1.JobsServer.
func (j jobs) Watch(req *nusav1.GetJobRequest, to grpc.ServerStreamingServer[nusav1.Job]) error {
	var sent *nusav1.Job
	for {
		j.s.mu.Lock()
		now, err := j.s.job(req.GetJob().GetNamespace(), req.GetJob().GetName())
		changed := j.s.changed
		j.s.mu.Unlock()
		switch {
		case err != nil && sent != nil:
			return nil // the job was purged
		case err != nil:
			return err
		case now != sent:
			if err := to.Send(now); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-changed:
		case <-to.Context().Done():
			return status.FromContextError(to.Context().Err()).Err()
		}
	}
}
