package deadletters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// kindLetter is the kind of the objects in errors and in the audit trail.
	kindLetter = "deadletter"
	// shortest is the least length of a part of an id.
	shortest                = 4
	defaultLimit, limitMost = 100, 1000
)

// Service is the DeadLetters service of a global server.
type Service struct {
	nusav1.UnimplementedDeadLettersServer
	// Current returns the book of the present term, or nil if this server is not active.
	Current func() *Book
}

// book returns the book once its records are read.
func (s *Service) book(ctx context.Context) (*Book, error) {
	b := s.Current()
	if b == nil {
		return nil, state.RPCErrors.Err(state.ErrNotActive)
	}
	return b, state.AwaitRecords(ctx, b.cfg.Term.Context.Done(), b.ready)
}

func invalid(field, format string, args ...any) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
}

// List implements nusav1.DeadLettersServer.
func (s *Service) List(ctx context.Context, req *nusav1.ListDeadLettersRequest) (*nusav1.ListDeadLettersResponse, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = defaultLimit
	case limit < 1 || limit > limitMost:
		return nil, invalid("limit", "must be 1..%d", limitMost)
	}
	after, err := parseToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	b.st.Lock()
	defer b.st.Unlock()
	if name := req.GetRegion(); name != "" && !b.knows(name) {
		return nil, invalid("region", "%q does not exist; there are %s", name, topo.ListNames(b.st.RegionNames()))
	}
	out := &nusav1.ListDeadLettersResponse{Retention: &nusav1.DeadLetterRetention{
		Age: durationpb.New(b.cfg.Retention), Most: mostLetters, MostBytes: mostBytes, Count: int64(len(b.order)), Bytes: int64(b.bytes),
		Alarm: int64(max(0, b.cfg.Alarm)), Open: int64(b.open),
	}}
	for _, e := range slices.Backward(b.order) {
		l := e.rec
		if !after.before(l) || !wanted(req, l) || filtered && !call.May(l.GetNamespace(), "") || !filter.Labels(b.labelsOf(l), req.GetLabels()) {
			continue
		}
		if len(out.DeadLetters) == limit {
			last := out.DeadLetters[limit-1]
			out.NextPageToken = fmt.Sprintf("%d-%s", last.GetCreated().AsTime().UnixNano(), last.GetId())
			break
		}
		out.DeadLetters = append(out.DeadLetters, l)
	}
	return out, nil
}

// labelsOf returns the labels of the version of a job that failed. The lock is held.
func (b *Book) labelsOf(l *nusav1.DeadLetter) map[string]string {
	if s := b.sources[sourceOf(l)]; s != nil {
		return s.labels
	}
	return nil
}

// knows reports whether there is a region, or a dead letter from a region that was removed. The lock is held.
func (b *Book) knows(region string) bool {
	return b.st.Regions[region] != nil || slices.ContainsFunc(b.order, func(e *entry) bool { return e.rec.GetRegion() == region })
}

// place is a place in a list: after the dead letter of this time and id.
type place struct {
	nano int64
	id   string
}

func parseToken(token string) (p place, err error) {
	if token == "" {
		return p, nil
	}
	nano, id, _ := strings.Cut(token, "-")
	p.nano, err = strconv.ParseInt(nano, 10, 64)
	if err != nil || id == "" {
		return p, rpcerr.NoPage("page_token", token)
	}
	p.id = id
	return p, nil
}

// before reports whether a dead letter comes after the place.
func (p place) before(l *nusav1.DeadLetter) bool {
	at := l.GetCreated().AsTime().UnixNano()
	return p.id == "" || at < p.nano || at == p.nano && l.GetId() < p.id
}

// wanted reports whether a list shows a dead letter.
func wanted(req *nusav1.ListDeadLettersRequest, l *nusav1.DeadLetter) bool {
	of, _, _ := strings.Cut(l.GetJob(), string(job.RunMark))
	switch {
	case req.GetNamespace() != "" && l.GetNamespace() != req.GetNamespace(),
		req.GetJob() != "" && l.GetJob() != req.GetJob() && of != req.GetJob(),
		req.GetState() != 0 && l.GetState() != req.GetState(),
		req.GetRegion() != "" && l.GetRegion() != req.GetRegion():
		return false
	}
	return len(req.GetCategories()) == 0 || slices.Contains(req.GetCategories(), l.GetFailure().GetCategory())
}

// found returns a dead letter that the caller may read.
func (s *Service) found(ctx context.Context, id string) (*Book, *nusav1.DeadLetter, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, nil, err
	}
	call := rights.Of(ctx)
	missing := func() error {
		if call != nil {
			call.Filtered() // a missing object needs no decision
		}
		return rpcerr.NotFound(kindLetter, id, fmt.Sprintf("there is no dead letter %q: `nusa deadletter list` shows them; old ones are forgotten", id))
	}
	id = strings.ToLower(id)
	b.st.Lock()
	var all []*nusav1.DeadLetter
	if e := b.byID[id]; e != nil {
		all = append(all, e.rec)
	} else if len(id) >= shortest {
		for full, e := range b.byID {
			if strings.HasPrefix(full, id) && mayRead(call, e.rec) {
				all = append(all, e.rec)
			}
		}
	}
	b.st.Unlock()
	switch {
	case len(all) == 0 || !mayRead(call, all[0]):
		return nil, nil, missing()
	case len(all) > 1:
		if call != nil {
			call.Filtered()
		}
		return nil, nil, status.Errorf(codes.FailedPrecondition, "%d dead letters begin with %q: give more of the id", len(all), id)
	}
	return b, all[0], nil
}

// mayRead reports whether a caller may read a dead letter.
func mayRead(call *rights.Call, l *nusav1.DeadLetter) bool {
	return allowed(call, authz.Action{Verb: "read", Kind: "job", Namespace: l.GetNamespace(), Name: l.GetJob()})
}

func allowed(call *rights.Call, a authz.Action) bool {
	if call == nil {
		return true
	}
	set, who := call.Standing()
	return set.Allowed(who, a)
}

// Get implements nusav1.DeadLettersServer.
func (s *Service) Get(ctx context.Context, req *nusav1.GetDeadLetterRequest) (*nusav1.DeadLetter, error) {
	b, l, err := s.found(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	if err := call.Check(l.GetNamespace(), "", l.GetJob()); err != nil {
		return nil, err
	}
	out := proto.CloneOf(l)
	if req.GetSpec() && l.GetHasSpec() {
		spec, _, err := specOf(ctx, b, l)
		if err != nil {
			return nil, err
		}
		out.Spec = spec
	}
	if !allowed(call, authz.Action{Verb: "logs", Kind: "allocation", Namespace: l.GetNamespace(), Region: l.GetRegion()}) {
		return out, nil
	}
	kv, ok, _, err := b.cfg.Term.Store.Get(ctx, logKey(l.GetId()))
	if err != nil || !ok {
		return out, state.RPCErrors.Err(err)
	}
	rec := &nusav1.DeadLetterRecord{}
	if err := state.Decode(kv, rec); err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	out.Log = rec.GetDeadLetter().GetLog()
	return out, nil
}

// Drop implements nusav1.DeadLettersServer.
func (s *Service) Drop(ctx context.Context, req *nusav1.DropDeadLetterRequest) (*nusav1.DeadLetter, error) {
	b, l, err := s.found(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	if err := rights.Of(ctx).Check(l.GetNamespace(), "", l.GetJob()); err != nil {
		return nil, err
	}
	_, err = b.cfg.Term.Commit.SubmitBy(recorder.Of(ctx), func(t *state.Tx) error {
		if b.present(t, l.GetId()) == nil {
			return nil
		}
		e := audit.Entry{Verb: "drop", Kind: kindLetter, Namespace: l.GetNamespace(), Name: l.GetId(), Reason: "of job " + l.GetJob()}
		t.EventAt(l.GetRegion(), "deadletter.dropped", jobOf(l).String(), "%s[%d]: %s", l.GetGroup(), l.GetIndex(), l.GetId())
		return errors.Join(t.Audit(e), removeLetters(t, []string{l.GetId()}))
	})(ctx)
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	return l, nil
}
