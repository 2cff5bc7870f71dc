package rollouts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/versions"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
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
	if err == nil && ref.GetRegion() != "" {
		err = rpcerr.Invalid(wrong("job.region", "the versions of a region's own jobs are not stored; name a job of the federation"))
	}
	return term, k, err
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

// find returns a version by its number or tag. Empty: the version before the given one.
func find(k state.JobKey, all []*nusav1.JobVersion, name string, before int64) (*nusav1.JobVersion, error) {
	var list []versions.Version
	for _, v := range all {
		list = append(list, versions.Version{Number: v.GetVersion(), Tag: v.GetTag()})
	}
	at := versions.Find(list, name)
	if name == "" {
		name = "before " + strconv.FormatInt(before, 10)
		at = slices.IndexFunc(list, func(v versions.Version) bool { return v.Number < before })
	}
	if at < 0 {
		return nil, rpcerr.NotFound("version", name, fmt.Sprintf("job %s has no stored version %s: `nusa job history %s` lists them", k, name, k))
	}
	return all[at], nil
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

// Diff implements nusav1.RolloutsServer.
func (s *Service) Diff(ctx context.Context, req *nusav1.JobDiffRequest) (*nusav1.JobDiff, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	rec, err := record(ctx, term, k)
	if err != nil {
		return nil, err
	}
	all := rec.Versions()
	to, err := find(k, all, cmp.Or(req.GetTo(), strconv.FormatInt(rec.Version(), 10)), 0)
	if err != nil {
		return nil, err
	}
	from, err := find(k, all, req.GetFrom(), to.GetVersion())
	if err != nil {
		return nil, err
	}
	before, err := specOf(ctx, term, k, rec, from)
	if err != nil {
		return nil, err
	}
	after, err := specOf(ctx, term, k, rec, to)
	if err != nil {
		return nil, err
	}
	job.Default(before)
	job.Default(after)
	return &nusav1.JobDiff{From: from.GetVersion(), To: to.GetVersion(), Lines: job.Diff(before, after)}, nil
}

// Revert implements nusav1.RolloutsServer.
func (s *Service) Revert(ctx context.Context, req *nusav1.RevertJobRequest) (*nusav1.SubmitResponse, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
	}
	if err := rights.MaySubmit(ctx, k.Namespace, k.Name); err != nil {
		return nil, err
	}
	rec, err := record(ctx, term, k)
	if err != nil {
		return nil, err
	}
	to, err := target(ctx, term, k, rec, req.GetTo())
	if err != nil {
		return nil, err
	}
	spec, err := specOf(ctx, term, k, rec, to)
	if err != nil {
		return nil, err
	}
	out, err := api.Submit(ctx, term, &nusav1.SubmitRequest{Spec: spec, CheckRevision: req.GetCheckRevision(), IdempotencyKey: req.GetIdempotencyKey()})
	if err != nil {
		return nil, err
	}
	out = proto.CloneOf(out)
	out.RevertedTo = to.GetVersion()
	if req.GetTo() == "" && !to.GetComplete() {
		known := "it is not known to have run completely"
		if to.GetFailed() != "" {
			known = "it failed: " + to.GetFailed()
		}
		out.Warnings = append(out.Warnings, fmt.Sprintf("no earlier version is known to have run completely, so version %d was submitted again, and %s: `nusa job history %s` lists the versions", to.GetVersion(), known, k))
	}
	return out, nil
}

// target returns the version to which a revert goes back: the one with a number or a tag, or else the latest
// earlier one that ran completely, if there is one with another spec than the present version. If none ran
// completely, it is the version before the present one.
func target(ctx context.Context, term *api.Term, k state.JobKey, rec *state.Record, name string) (out *nusav1.JobVersion, err error) {
	all := rec.Versions()
	if name != "" {
		return find(k, all, name, 0)
	}
	term.State.Lock()
	healthy := term.State.Jobs[k].HealthyVersion(rec)
	term.State.Unlock()
	for _, v := range all[1:] {
		v.Complete = v.GetComplete() || v.GetVersion() == healthy
		if !v.GetComplete() {
			continue
		}
		spec, err := specOf(ctx, term, k, rec, v)
		if err != nil {
			return nil, err
		}
		if !proto.Equal(spec, rec.Spec()) {
			return v, nil
		}
		out = cmp.Or(out, v)
	}
	if out != nil {
		return out, nil
	}
	return find(k, all, "", rec.Version())
}

// Tag implements nusav1.RolloutsServer.
func (s *Service) Tag(ctx context.Context, req *nusav1.TagVersionRequest) (*nusav1.JobVersion, error) {
	term, k, err := s.job(req.GetJob())
	if err != nil {
		return nil, err
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
