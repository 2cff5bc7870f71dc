package regional

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// maxKey is the longest idempotency key.
	maxKey = 128
	// idempotencyKept is how long a key makes a retry harmless.
	idempotencyKept = 24 * time.Hour
)

// Submit stores a job of the region's own.
func (j jobs) Submit(ctx context.Context, req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	l, err := j.s.leading()
	if err != nil {
		return nil, err
	}
	return l.beginSubmit(req)(ctx)
}

// SubmitMany submits each message and answers in order.
func (j jobs) SubmitMany(stream grpc.BidiStreamingServer[nusav1.SubmitRequest, nusav1.SubmitManyResponse]) error {
	l, err := j.s.leading()
	if err != nil {
		return err
	}
	return serve.SubmitMany(stream, l.ctx.Done(), errNoMaster, func(_ context.Context, req *nusav1.SubmitRequest) serve.FinishSubmit {
		return l.beginSubmit(req)
	})
}

// beginSubmit judges everything about the input, so that a refusal changes
// nothing, and queues the command. Submits take effect in the order in which
// they began.
func (l *leader) beginSubmit(req *nusav1.SubmitRequest) serve.FinishSubmit {
	cmd, warnings, err := l.readSubmit(req)
	var p *raftlog.Proposal
	if err == nil {
		p, err = l.seq.Propose(state.Command{SubmitLocalJob: cmd})
	}
	return func(ctx context.Context) (*nusav1.SubmitResponse, error) {
		if err != nil {
			return nil, wireError(err)
		}
		r, err := p.Wait(ctx)
		if err != nil {
			return nil, wireError(err)
		}
		out := &nusav1.SubmitResponse{Version: r.Version, Revision: int64(r.Revision), Changed: !r.Same, Warnings: warnings}
		key := cmd.Job.Key
		if r.Changed && !r.Same {
			l.events.Add("job.submitted", key.In(l.s.cfg.Region.GetName()), "version %d", r.Version)
		}
		if r.Same && cmd.Job.Type == state.Batch {
			if now, err := l.job(l.s.fsm.View(), key); err == nil {
				out.Warnings = append(job.EndedAlready(now.GetStatus().GetState()), warnings...)
			}
		}
		return out, nil
	}
}

// readSubmit is the command of a request that Codec has left encoded, and
// what its author should know.
func (l *leader) readSubmit(req *nusav1.SubmitRequest) (*state.SubmitLocalJob, []string, error) {
	s, err := wire.SplitSubmitRequest(req.ProtoReflect().GetUnknown())
	if err != nil {
		return nil, nil, err
	}
	if len(s.Key) > maxKey {
		return nil, nil, rpcerr.Invalid(&nusav1.Problem{Field: "idempotency_key", Message: fmt.Sprintf("longer than %d bytes", maxKey)})
	}
	name, t, err := l.specs.Get(s.Spec, l.learn)
	if err != nil {
		return nil, nil, err
	}
	cmd := &state.SubmitLocalJob{Job: t.Named(name), CheckRevision: s.CheckRevision, Again: s.Again}
	if s.Key != "" {
		cmd.Idempotency = idempotency(&s, cmd.Job.Spec)
	}
	return cmd, t.Warnings, nil
}

// learn is what a spec comes to, judged: see template.
func (l *leader) learn(spec *nusav1.JobSpec) (wire.CachedSpec, error) {
	if err := l.checkSpec(spec); err != nil {
		return wire.CachedSpec{}, err
	}
	raw, err := wire.Deterministic.Marshal(spec)
	if err != nil {
		return wire.CachedSpec{}, status.Errorf(codes.InvalidArgument, "encode the spec: %v", err)
	}
	t := wire.CachedSpec{Job: *wire.JobFromProto(spec, raw, true, 0), Warnings: job.Warnings(spec)}
	_, t.Job.Spec, _ = wire.CutName(raw)
	return t, nil
}

// idempotency tells requests under one key apart by all that they ask for.
func idempotency(s *wire.SubmitFields, raw []byte) state.Idempotency {
	h := fnv.New128a()
	_, _ = h.Write(raw)
	_, _ = fmt.Fprintf(h, "%d %t", s.CheckRevision, s.Again)
	return state.Idempotency{
		Key: s.Key, Request: hex.EncodeToString(h.Sum(nil)),
		ExpiresUnixNano: time.Now().Add(idempotencyKept).UnixNano(),
	}
}
