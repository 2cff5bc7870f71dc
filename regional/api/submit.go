package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/internal/versions"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// maxKeyBytes is the length of the longest idempotency key.
	maxKeyBytes = 128
	// keyRetention is how long the answer to an idempotency key is stored.
	keyRetention = 24 * time.Hour
)

// SubmitEncoded stores one of the region's own jobs.
func (j jobs) SubmitEncoded(ctx context.Context, req *wire.SubmitRequest) (*nusav1.SubmitResponse, error) {
	m, err := j.s.master()
	if err != nil {
		return nil, err
	}
	return j.beginSubmit(ctx, m, req)(ctx)
}

// Submit stores one of the region's own jobs for another service of the region.
func Submit(ctx context.Context, s *Server, req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	raw, err := wire.Deterministic.Marshal(req)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode the job: %v", err)
	}
	return jobs{s: s}.SubmitEncoded(ctx, submits.NewRequest(raw))
}

// KeepsVersions returns an error while a server of the region does not know the earlier versions of jobs.
func KeepsVersions(view *state.View) error {
	c := view.Cluster()
	if c.FeatureLevel >= state.VersionLevel {
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "region %s has servers of an earlier version (feature level %d), so it cannot store versions of jobs with tags: upgrade all its servers", c.Region, c.FeatureLevel)
}

// checkTag checks the tag of a submit.
func (j jobs) checkTag(tag string) error {
	switch {
	case tag == "":
		return nil
	case versions.CheckTag(tag) != nil:
		return rpcerr.Invalid(&nusav1.Problem{Field: "tag", Message: versions.ErrTag.Error()})
	}
	return KeepsVersions(j.s.State.View())
}

// SubmitManyEncoded submits the job of each message. It sends the responses in the same order.
func (j jobs) SubmitManyEncoded(stream grpc.BidiStreamingServer[wire.SubmitRequest, nusav1.SubmitManyResponse]) error {
	m, err := j.s.master()
	if err != nil {
		return err
	}
	return serve.SubmitMany(stream, m.Done, raftlog.ErrNoMaster, func(ctx context.Context, req *wire.SubmitRequest) serve.FinishSubmit {
		return j.beginSubmit(ctx, m, req)
	})
}

// beginSubmit validates the whole request, so that a refused request changes nothing, and
// then queues the command. Submits take effect in the order of the calls of beginSubmit.
func (j jobs) beginSubmit(ctx context.Context, m *Master, req *wire.SubmitRequest) serve.FinishSubmit {
	cmd, warnings, err := j.parseSubmit(ctx, m, req)
	var p *raftlog.Proposal
	if err == nil {
		hash := sha256.Sum256(cmd.Job.Spec)
		e := audit.Entry{Verb: "submit", Kind: "job", Namespace: cmd.Job.Key.Namespace, Name: cmd.Job.Key.Job, After: hash[:]}
		p, err = m.Log.Propose(j.s.audited(ctx, state.Command{SubmitLocalJob: cmd}, e))
	}
	return func(ctx context.Context) (*nusav1.SubmitResponse, error) {
		if err != nil {
			return nil, raftlog.StatusError(err)
		}
		r, err := p.Wait(ctx)
		if err != nil {
			return nil, raftlog.StatusError(err)
		}
		out := &nusav1.SubmitResponse{Version: r.Version, Revision: int64(r.Revision), Changed: !r.Same, Warnings: warnings}
		if r.Same && cmd.Job.Type == state.Batch {
			if now, err := j.job(m, j.s.State.View(), cmd.Job.Key); err == nil {
				out.Warnings = append(job.EndedAlready(now.GetStatus().GetState()), warnings...)
			}
		}
		return out, nil
	}
}

// parseSubmit returns the command of a request, and warnings for its author. It returns an error if
// the caller may not submit the job, or if the job's namespace does not allow what it asks for.
func (j jobs) parseSubmit(ctx context.Context, m *Master, req *wire.SubmitRequest) (*state.SubmitLocalJob, []string, error) {
	f, err := req.Fields()
	if err != nil {
		return nil, nil, err
	}
	if len(f.Key) > maxKeyBytes {
		return nil, nil, rpcerr.Invalid(&nusav1.Problem{Field: "idempotency_key", Message: fmt.Sprintf("longer than %d bytes", maxKeyBytes)})
	}
	if err := j.checkTag(f.Tag); err != nil {
		return nil, nil, err
	}
	name, spec, err := m.Specs.Get(f.Spec, j.parseSpec)
	if err != nil {
		return nil, nil, cmp.Or(rights.MaySubmitEncoded(ctx, f.Spec), err)
	}
	cmd := &state.SubmitLocalJob{Job: spec.Named(name), CheckRevision: f.CheckRevision, Again: f.Again, Tag: f.Tag}
	newer := func(g state.Group) bool { return g.Retry != nil || g.Parallel > 0 }
	if slices.ContainsFunc(cmd.Job.Groups, newer) && j.s.State.View().Cluster().FeatureLevel < state.ParallelLevel {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "job %s: retry and parallel need feature level %d of each server of region %s: upgrade them first, or leave them out",
			name, state.ParallelLevel, j.s.region())
	}
	err = rights.Submit(ctx, j.s.Rights, rights.Submission{
		Namespace: cmd.Job.Key.Namespace, Name: name, Region: j.s.region(), Encoded: spec.Job.Spec, Asked: spec.Asked,
	})
	if err != nil {
		return nil, nil, err
	}
	if f.Key != "" {
		cmd.Idempotency = idempotency(&f, cmd.Job.Spec)
	}
	return cmd, spec.Warnings, nil
}

// parseSpec validates a spec. It returns the value that the cache stores for the spec.
func (j jobs) parseSpec(spec *nusav1.JobSpec) (wire.CachedSpec, error) {
	if err := checkJob(j.s, spec); err != nil {
		return wire.CachedSpec{}, err
	}
	raw, err := wire.Deterministic.Marshal(spec)
	if err != nil {
		return wire.CachedSpec{}, status.Errorf(codes.InvalidArgument, "encode the spec: %v", err)
	}
	out := wire.CachedSpec{Job: *wire.JobFromProto(spec, raw, true, 0), Warnings: job.Warnings(spec), Asked: &rights.Asked{}}
	_, out.Job.Spec, _ = submits.CutName(raw)
	return out, nil
}

// idempotency returns the key of a request and a hash of the request. With the hash, a
// different request with the same key is refused.
func idempotency(f *wire.SubmitFields, spec []byte) state.Idempotency {
	h := fnv.New128a()
	_, _ = h.Write(spec)
	_, _ = fmt.Fprintf(h, "%d %t", f.CheckRevision, f.Again)
	if f.Tag != "" {
		_, _ = fmt.Fprintf(h, " %s", f.Tag)
	}
	return state.Idempotency{
		Key: f.Key, Request: hex.EncodeToString(h.Sum(nil)),
		ExpiresUnixNano: time.Now().Add(keyRetention).UnixNano(),
	}
}
