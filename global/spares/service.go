package spares

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/spares/step"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// kindSpare is the kind of the objects in errors.
const kindSpare = "spare"

// Service is the Spares service of a global server.
type Service struct {
	nusav1.UnimplementedSparesServer
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

// Prepare implements nusav1.SparesServer.
func (s *Service) Prepare(ctx context.Context, req *nusav1.PrepareSpareRequest) (*nusav1.Spare, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	request, id, err := checked(req, b.cfg.Policy)
	if err != nil {
		return nil, err
	}
	if err := rights.Of(ctx).Check(request.GetNamespace(), "", id); err != nil {
		return nil, err
	}
	rec := recordOf(request, id, time.Now())
	var again *nusav1.SpareRecord
	_, err = b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
		again = b.present(t, id)
		if again != nil {
			return nil
		}
		if len(b.opened(t)) >= openMost {
			return status.Errorf(codes.ResourceExhausted, "%d spares have not ended, the most that are allowed: release or cancel some", openMost)
		}
		if name := request.GetProvisioner(); name != "" {
			p, ok := b.provisioners.Of(t, name)
			if !ok {
				return rpcerr.Invalid(&nusav1.Problem{Field: "provisioner", Message: fmt.Sprintf("there is no provisioner %q: see nusa spare provisioner list", name)})
			}
			rec.JoinTimeout = p.GetProvisioner().GetJoinTimeout()
		}
		e := audit.Entry{Verb: "prepare", Kind: kindSpare, Namespace: request.GetNamespace(), Name: id, After: state.AuditHash(rec.GetSpare().GetRequest())}
		return errors.Join(t.Audit(e), state.PutOther(t, recordKey(id), rec))
	})
	switch {
	case err != nil:
		return nil, state.RPCErrors.Err(err)
	case again != nil && !bytes.Equal(again.GetFingerprint(), rec.GetFingerprint()):
		return nil, status.Errorf(codes.AlreadyExists, "the idempotency key was used for another spare, %s", id)
	case again != nil:
		rec = again
	}
	return shown(rec), nil
}

// recordOf returns the record of a new spare.
func recordOf(request *nusav1.PrepareSpareRequest, id string, now time.Time) *nusav1.SpareRecord {
	rec := &nusav1.SpareRecord{Secret: request.GetCallbackSecret()}
	if request.GetIdempotencyKey() != "" {
		rec.Fingerprint = printOf(request)
	}
	request.CallbackSecret = ""
	rec.Spare = &nusav1.Spare{
		Id: id, Request: request, State: nusav1.SpareState_SPARE_STATE_RESERVING, Created: timestamppb.New(now),
		Deadline: timestamppb.New(now.Add(request.GetDeadline().AsDuration())),
	}
	for range request.GetCount() {
		rec.Spare.Hosts = append(rec.Spare.Hosts, &nusav1.SpareHost{State: step.Wanted.String()})
		rec.Rounds = append(rec.Rounds, 0)
	}
	return rec
}

// found returns a spare that the caller may use.
func (s *Service) found(ctx context.Context, id string) (*Book, *nusav1.Spare, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, nil, err
	}
	call := rights.Of(ctx)
	missing := func() error {
		if call.Confined() {
			return rpcerr.NotFound(kindSpare, id, fmt.Sprintf("there is no spare %q that the caller may read", id))
		}
		return rpcerr.NotFound(kindSpare, id, fmt.Sprintf("there is no spare %q: `nusa spare list` shows them; old ones are forgotten", id))
	}
	r := b.find(id)
	if r == nil {
		if call != nil {
			call.Filtered() // a missing object needs no decision
		}
		return nil, nil, missing()
	}
	return b, r, call.Find(r.GetRequest().GetNamespace(), "", r.GetId(), missing)
}

// Get implements nusav1.SparesServer.
func (s *Service) Get(ctx context.Context, req *nusav1.GetSpareRequest) (*nusav1.Spare, error) {
	_, r, err := s.found(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return r, nil
}

// List implements nusav1.SparesServer.
func (s *Service) List(ctx context.Context, req *nusav1.ListSparesRequest) (*nusav1.ListSparesResponse, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = 100
	case limit < 1 || limit > 1000:
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "limit", Message: "must be 1..1000"})
	}
	if token := req.GetPageToken(); token != "" && uuid.Validate(token) != nil {
		return nil, rpcerr.NoPage("page_token", token)
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	all, more := b.filter(req.GetPageToken(), limit, func(x *nusav1.Spare) bool {
		of := x.GetRequest()
		return (req.GetNamespace() == "" || req.GetNamespace() == of.GetNamespace()) && (req.GetPool() == "" || req.GetPool() == of.GetPool()) &&
			(len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), x.GetState())) && (!filtered || call.May(of.GetNamespace(), ""))
	})
	out := &nusav1.ListSparesResponse{Spares: all}
	if more {
		out.NextPageToken = all[len(all)-1].GetId()
	}
	return out, nil
}

// Release implements nusav1.SparesServer.
func (s *Service) Release(ctx context.Context, req *nusav1.ReleaseSpareRequest) (*nusav1.Spare, error) {
	return s.order(ctx, req.GetId(), step.Release, "release")
}

// Cancel implements nusav1.SparesServer.
func (s *Service) Cancel(ctx context.Context, req *nusav1.CancelSpareRequest) (*nusav1.Spare, error) {
	return s.order(ctx, req.GetId(), step.Cancel, "cancel")
}

// order makes a step of a spare for a caller. The loop carries out what follows.
func (s *Service) order(ctx context.Context, id string, order step.Order, verb string) (*nusav1.Spare, error) {
	b, r, err := s.found(ctx, id)
	if err != nil {
		return nil, err
	}
	id = r.GetId()
	_, err = b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
		rec := b.present(t, id)
		at := rec.GetSpare().GetState()
		switch {
		case rec == nil || phaseOf(at) >= step.Releasing:
			return nil
		case order == step.Release && phaseOf(at) < step.Notifying:
			return status.Errorf(codes.FailedPrecondition, "spare %s is %s: its hosts are not ready; nusa spare cancel ends it now", id, Word(at))
		}
		// Nothing is known here of the reservations. The loop looks at them.
		in := step.Input{Now: time.Now(), Order: order, Reservations: make([]step.Reservation, len(rec.GetRounds()))}
		for i := range in.Reservations {
			in.Reservations[i].Known = step.Open
		}
		if _, err := b.put(t, rec, in); err != nil {
			return err
		}
		return t.Audit(audit.Entry{Verb: verb, Kind: kindSpare, Namespace: r.GetRequest().GetNamespace(), Name: id, Reason: Word(at)})
	})
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	if now := b.find(id); now != nil {
		return now, nil
	}
	return nil, rpcerr.NotFound(kindSpare, id, fmt.Sprintf("spare %q was forgotten", id))
}

// Word returns a state as people write it, for example "joining".
func Word(s nusav1.SpareState) string {
	return wordOf(s.String(), "SPARE_STATE_")
}
