package api

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// jobsAPI is the public Jobs service of the federation.
type jobsAPI struct {
	nusav1.UnimplementedJobsServer
	s *Services
}

// checkRef returns the key of the job that a reference names. It fills in the default namespace.
func checkRef(ref *nusav1.JobRef) (state.JobKey, error) {
	k := state.JobKey{Namespace: ref.GetNamespace(), Name: ref.GetName()}
	if k.Namespace == "" {
		k.Namespace = job.DefaultNamespace
	}
	if k.Name == "" || strings.ContainsAny(k.Namespace+k.Name, "/@") {
		return k, invalid("job.name", "must name a job, as NAME or NAMESPACE/NAME")
	}
	return k, nil
}

// regionJobs returns the Jobs service of the region that a reference names, or nil if the job
// belongs to the federation.
func regionJobs(term *Term, ref *nusav1.JobRef) (nusav1.JobsClient, error) {
	if ref.GetRegion() == "" {
		return nil, nil
	}
	conn, err := term.dial(ref.GetRegion())
	if err != nil {
		return nil, err
	}
	return nusav1.NewJobsClient(conn), nil
}

// Get implements nusav1.JobsServer.
func (j *jobsAPI) Get(ctx context.Context, req *nusav1.GetJobRequest) (*nusav1.Job, error) {
	term, err := j.s.term()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := regionJobs(term, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Get(ctx, req)
	}
	term.State.Lock()
	found := term.State.Jobs[k]
	if found == nil || found.Record == nil {
		term.State.Unlock()
		return nil, jobNotFound(k)
	}
	out := found.ToProto(term.State.Sight())
	term.State.Unlock()
	placer.AddDestinations(term.State, k, out.GetStatus())
	return out, nil
}

// Stop implements nusav1.JobsServer.
func (j *jobsAPI) Stop(ctx context.Context, req *nusav1.StopJobRequest) (*nusav1.StopJobResponse, error) {
	term, err := j.s.term()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := regionJobs(term, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Stop(ctx, req)
	}
	stored := int64(0)
	revision, err := term.Commit.Do(ctx, func(t *state.Tx) error {
		old, rev := t.Job(k)
		if old == nil {
			return jobNotFound(k)
		}
		if err := state.CheckRevision("job "+k.String(), req.GetCheckRevision(), true, rev); err != nil {
			return err
		}
		if old.Stopped() && (old.Purge() || !req.GetPurge()) {
			stored = rev
			return nil
		}
		if err := t.Audit("job.stopped", k.String(), fmt.Sprintf("purge %t", req.GetPurge())); err != nil {
			return err
		}
		how := "its instances are being stopped"
		if req.GetPurge() {
			how += ", then the job is forgotten"
			if len(t.Slots(k, "")) == 0 {
				t.Event("job.stopped", k.String(), "it has no instances")
				t.Event("job.purged", k.String(), "forgotten")
				return t.DeleteJob(k)
			}
		}
		t.Event("job.stopped", k.String(), "%s", how)
		next := old.Full()
		next.Job.Stopped, next.Job.Run = true, old.Run(rev)
		next.Purge = next.Purge || req.GetPurge()
		return t.PutJob(k, next)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	if stored != 0 {
		return &nusav1.StopJobResponse{Revision: stored}, nil
	}
	term.Log.Info("job stopped", "job", k.String(), "purge", req.GetPurge())
	return &nusav1.StopJobResponse{Revision: revision}, nil
}

// Adopt implements nusav1.JobsServer.
func (j *jobsAPI) Adopt(context.Context, *nusav1.AdoptRequest) (*nusav1.SubmitResponse, error) {
	return nil, status.Error(codes.Unimplemented, "adopting a region's job is not supported yet; stop it there and submit it here")
}

// Watch implements nusav1.JobsServer.
func (j *jobsAPI) Watch(req *nusav1.GetJobRequest, stream grpc.ServerStreamingServer[nusav1.Job]) error {
	term, err := j.s.term()
	if err != nil {
		return err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return err
	}
	if client, err := regionJobs(term, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return err
		}
		up, err := client.Watch(stream.Context(), req)
		if err != nil {
			return err
		}
		return relay(up, stream.Send)
	}
	var sent *nusav1.Job // without the spec
	var record *state.Record
	var spec *nusav1.JobSpec // of record
	return term.follow(stream.Context(), func() (<-chan struct{}, error) {
		term.State.Lock()
		found := term.State.Jobs[k]
		if found == nil || found.Record == nil {
			term.State.Unlock()
			if sent == nil {
				return nil, jobNotFound(k)
			}
			return nil, nil // the job was purged
		}
		changed := found.Watched()
		now, latest := found.WithoutSpec(term.State.Sight()), found.Record
		term.State.Unlock()
		if latest == record && proto.Equal(now, sent) {
			return changed, nil
		}
		if latest != record {
			record, spec = latest, latest.Spec()
		}
		sent, now.Spec = now, spec
		err := stream.Send(now)
		now.Spec = nil
		return changed, err
	})
}
