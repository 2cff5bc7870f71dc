package rollouts

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/jobhistory"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/versions"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Service is the Rollouts service of a global server.
type Service struct {
	nusav1.UnimplementedRolloutsServer
	// Current returns the present term, or nil if this server is not active.
	Current func() *api.Term
}

// job returns the term and the key of the job that a request names.
func (s *Service) job(ref *nusav1.JobRef) (*api.Term, state.JobKey, error) {
	term := s.Current()
	if term == nil {
		return nil, state.JobKey{}, state.RPCErrors.Err(state.ErrNotActive)
	}
	k, err := api.JobKeyOf(ref)
	return term, k, err
}

// ask makes a call about one of a region's own jobs. The region keeps the versions of these jobs.
func ask[T any](term *api.Term, region string, call func(nusav1.RolloutsClient) (T, error)) (out T, err error) {
	conn, err := term.Dial(region)
	if err != nil {
		return out, err
	}
	out, err = call(nusav1.NewRolloutsClient(conn))
	return out, api.OfRegion(region, err)
}

func wrong(field, message string) *nusav1.Problem {
	return &nusav1.Problem{Field: field, Message: message}
}

// record returns the stored record of a job, also of one in the history.
func record(ctx context.Context, term *api.Term, k state.JobKey) (rec *state.Record, err error) {
	_, err = api.ChangeJob(ctx, term, k, func(t *state.Tx) error {
		rec, _, err = state.Stored(t, k)
		return err
	})
	if err == nil && rec == nil {
		err = api.JobNotFound(k)
	}
	return rec, api.StatusOf(err)
}

// History implements nusav1.RolloutsServer.
func (s *Service) History(ctx context.Context, req *nusav1.JobHistoryRequest) (*nusav1.JobHistory, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	if name := req.GetJob().GetRegion(); name != "" {
		return ask(term, name, func(r nusav1.RolloutsClient) (*nusav1.JobHistory, error) { return r.History(ctx, req) })
	}
	rec, err := record(ctx, term, k)
	if err != nil {
		return nil, err
	}
	out := &nusav1.JobHistory{Versions: rec.Versions()}
	term.State.Lock()
	defer term.State.Unlock()
	if j := term.State.Jobs[k]; j != nil && j.Record == rec {
		out.Versions[0].InPlace = j.InPlace()
		out.Versions[0].Failed, out.Versions[0].Complete = j.HowItRan(rec, term.State.Sight())
	}
	return out, nil
}

// specOf returns the spec of a version.
func specOf(ctx context.Context, term *api.Term, k state.JobKey, rec *state.Record, v *nusav1.JobVersion) (*nusav1.JobSpec, error) {
	if v.GetVersion() == rec.Version() {
		return rec.Spec(), nil
	}
	kv, ok, _, err := term.Store.Get(ctx, state.VersionKey(k, v.GetVersion()))
	if err != nil {
		return nil, api.StatusOf(err)
	}
	if !ok {
		return nil, rpcerr.NotFound("version", strconv.FormatInt(v.GetVersion(), 10), fmt.Sprintf("version %d of job %s was removed", v.GetVersion(), k))
	}
	stored, spec := &nusav1.VersionRecord{}, &nusav1.JobSpec{}
	if err := state.Decode(kv, stored); err != nil {
		return nil, api.StatusOf(err)
	}
	raw, err := compact.Unpack(stored.GetSpec())
	if err == nil {
		err = proto.Unmarshal(raw, spec)
	}
	if err != nil {
		return nil, api.StatusOf(fmt.Errorf("%s: %w", kv.Key, err))
	}
	return spec, nil
}

// history returns a stored job with its versions.
func history(ctx context.Context, term *api.Term, k state.JobKey, rec *state.Record) *jobhistory.Job {
	return &jobhistory.Job{Name: k.String(), Versions: rec.Versions(), Spec: func(v *nusav1.JobVersion) (*nusav1.JobSpec, error) {
		return specOf(ctx, term, k, rec, v)
	}}
}

// Diff implements nusav1.RolloutsServer.
func (s *Service) Diff(ctx context.Context, req *nusav1.JobDiffRequest) (*nusav1.JobDiff, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	if name := req.GetJob().GetRegion(); name != "" {
		return ask(term, name, func(r nusav1.RolloutsClient) (*nusav1.JobDiff, error) { return r.Diff(ctx, req) })
	}
	rec, err := record(ctx, term, k)
	if err != nil {
		return nil, err
	}
	return history(ctx, term, k, rec).Diff(req)
}

// Revert implements nusav1.RolloutsServer.
func (s *Service) Revert(ctx context.Context, req *nusav1.RevertJobRequest) (*nusav1.SubmitResponse, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	if name := req.GetJob().GetRegion(); name != "" {
		if err := rights.MaySubmitIn(ctx, k.Namespace, name, k.Name); err != nil {
			return nil, err
		}
		return ask(term, name, func(r nusav1.RolloutsClient) (*nusav1.SubmitResponse, error) { return r.Revert(ctx, req) })
	}
	if err := rights.MaySubmit(ctx, k.Namespace, k.Name); err != nil {
		return nil, err
	}
	rec, err := record(ctx, term, k)
	if err != nil {
		return nil, err
	}
	all := history(ctx, term, k, rec)
	term.State.Lock()
	healthy := term.State.Jobs[k].HealthyVersion(rec)
	term.State.Unlock()
	for _, v := range all.Versions[1:] {
		v.Complete = v.GetComplete() || v.GetVersion() == healthy
	}
	return all.Revert(req, func(req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) { return api.Submit(ctx, term, req) })
}

// Tag implements nusav1.RolloutsServer.
func (s *Service) Tag(ctx context.Context, req *nusav1.TagVersionRequest) (*nusav1.JobVersion, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	if name := req.GetJob().GetRegion(); name != "" {
		return ask(term, name, func(r nusav1.RolloutsClient) (*nusav1.JobVersion, error) { return r.Tag(ctx, req) })
	}
	if req.GetTag() != "" && versions.CheckTag(req.GetTag()) != nil {
		return nil, rpcerr.Invalid(wrong("tag", versions.ErrTag.Error()))
	}
	var out *nusav1.JobVersion
	_, err = api.ChangeJob(ctx, term, k, func(t *state.Tx) error {
		rec, _, err := state.Stored(t, k)
		if err != nil {
			return err
		}
		if rec == nil {
			return api.JobNotFound(k)
		}
		out, err = t.TagVersion(k, cmp.Or(req.GetVersion(), rec.Version()), req.GetTag())
		return err
	})
	return out, api.StatusOf(err)
}
