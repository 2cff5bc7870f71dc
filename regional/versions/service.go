package versions

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/jobhistory"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/versions"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Service is the Rollouts service of a region.
type Service struct {
	nusav1.UnimplementedRolloutsServer
	Server *api.Server
}

// job returns the region's own job that a request names.
func (s *Service) job(ref *nusav1.JobRef) (*state.View, *state.LocalJob, error) {
	if s.Server.Master() == nil {
		return nil, nil, raftlog.ErrNoMaster
	}
	view := s.Server.State.View()
	k, err := api.FindJob(view, ref)
	if err != nil {
		return nil, nil, err
	}
	own, found := view.LocalJob(k.Namespace, k.Job)
	if !k.Local || !found {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s belongs to the federation, which keeps its versions: ask a global server", k)
	}
	return view, own, nil
}

// history returns a job with its versions.
func history(view *state.View, own *state.LocalJob) *jobhistory.Job {
	k := own.Key()
	stored := view.StoredVersions(k)
	present := &nusav1.JobVersion{Version: own.Version, Submitted: wire.TimestampToProto(own.SubmittedUnixNano), Tag: own.Tag()}
	present.Failed, present.Complete = view.HowItRan(own)
	all := []*nusav1.JobVersion{present}
	for _, v := range slices.Backward(stored) {
		all = append(all, &nusav1.JobVersion{
			Version: v.Version, Submitted: wire.TimestampToProto(v.SubmittedUnixNano), Replaced: wire.TimestampToProto(v.ReplacedUnixNano),
			Tag: v.Tag, Bytes: int64(v.Bytes()), Failed: v.Failed, Complete: v.Complete,
		})
	}
	name := k.In(view.Cluster().Region)
	return &jobhistory.Job{Name: name, Versions: all, Spec: func(v *nusav1.JobVersion) (*nusav1.JobSpec, error) {
		spec := &nusav1.JobSpec{}
		if err := proto.Unmarshal(encoded(view, own, v.GetVersion()), spec); err != nil {
			return nil, status.Errorf(codes.Internal, "stored spec of version %d of job %s: %v", v.GetVersion(), name, err)
		}
		return spec, nil
	}}
}

// encoded returns the encoded spec of a version that is stored.
func encoded(view *state.View, own *state.LocalJob, version int64) []byte {
	for _, v := range view.StoredVersions(own.Key()) {
		if v.Version == version {
			return v.Spec
		}
	}
	if present, found := view.Job(own.Key(), version); found {
		return present.Spec
	}
	return nil
}

// History implements nusav1.RolloutsServer.
func (s *Service) History(_ context.Context, req *nusav1.JobHistoryRequest) (*nusav1.JobHistory, error) {
	view, own, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	return &nusav1.JobHistory{Versions: history(view, own).Versions}, nil
}

// Diff implements nusav1.RolloutsServer.
func (s *Service) Diff(_ context.Context, req *nusav1.JobDiffRequest) (*nusav1.JobDiff, error) {
	view, own, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	return history(view, own).Diff(req)
}

// Revert implements nusav1.RolloutsServer. It checks what a submit checks.
func (s *Service) Revert(ctx context.Context, req *nusav1.RevertJobRequest) (*nusav1.SubmitResponse, error) {
	name, _, _ := strings.Cut(req.GetJob().GetName(), "@")
	if err := rights.MaySubmit(ctx, req.GetJob().GetNamespace(), name); err != nil {
		return nil, err
	}
	view, own, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	return history(view, own).Revert(req, func(req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
		return api.Submit(ctx, s.Server, req)
	})
}

// Tag implements nusav1.RolloutsServer.
func (s *Service) Tag(ctx context.Context, req *nusav1.TagVersionRequest) (*nusav1.JobVersion, error) {
	view, own, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	if req.GetTag() != "" && versions.CheckTag(req.GetTag()) != nil {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "tag", Message: versions.ErrTag.Error()})
	}
	if err := api.KeepsVersions(view); err != nil {
		return nil, err
	}
	number := cmp.Or(req.GetVersion(), own.Version)
	e := audit.Entry{Verb: "tag", Kind: "job", Namespace: own.Namespace, Name: own.Name, Reason: fmt.Sprintf("tag %s for version %d", req.GetTag(), number)}
	if req.GetTag() == "" {
		e.Reason = fmt.Sprintf("no tag for version %d", number)
	}
	_, err = s.Server.Commit(ctx, state.Command{TagVersion: &state.TagVersion{Namespace: own.Namespace, Name: own.Name, Version: number, Tag: req.GetTag()}}, e)
	if err != nil {
		return nil, err
	}
	for _, v := range history(view, own).Versions { // as it was, with the tag
		if v.GetVersion() == number {
			v.Tag = req.GetTag()
			return v, nil
		}
	}
	return &nusav1.JobVersion{Version: number, Tag: req.GetTag()}, nil
}

// Pause implements nusav1.RolloutsServer.
func (s *Service) Pause(_ context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(req)
}

// Resume implements nusav1.RolloutsServer.
func (s *Service) Resume(_ context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(req)
}

// Promote implements nusav1.RolloutsServer.
func (s *Service) Promote(_ context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(req)
}

// Fail implements nusav1.RolloutsServer.
func (s *Service) Fail(_ context.Context, req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	return s.steer(req)
}

// steer refuses a call that steers a rollout.
func (s *Service) steer(req *nusav1.ControlRolloutRequest) (*nusav1.Rollout, error) {
	_, own, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	return nil, jobhistory.NoStages(own.Key().In(s.Server.Region.GetName()))
}
