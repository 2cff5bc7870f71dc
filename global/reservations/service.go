package reservations

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// kindReservation is the kind of the objects in errors.
const kindReservation = "reservation"

// errExists: there is a reservation with the id.
var errExists = errors.New("the reservation exists")

// Service is the Reservations service of a global server.
type Service struct {
	nusav1.UnimplementedReservationsServer
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

// Create implements nusav1.ReservationsServer.
func (s *Service) Create(ctx context.Context, req *nusav1.CreateReservationRequest) (*nusav1.Reservation, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	return b.Open(ctx, req)
}

// Open stores a reservation, with the rights of the call of ctx. Without a call everything is allowed that
// the namespace allows.
func (b *Book) Open(ctx context.Context, req *nusav1.CreateReservationRequest) (*nusav1.Reservation, error) {
	return b.OpenIf(ctx, req, func(*state.Tx) error { return nil })
}

// OpenIf is Open for a reservation that another object has. wanted runs in the transaction: its error
// refuses the reservation. A transaction may be committed after ctx has ended, so a check before the call
// would not do.
func (b *Book) OpenIf(ctx context.Context, req *nusav1.CreateReservationRequest, wanted func(*state.Tx) error) (*nusav1.Reservation, error) {
	request, id, err := checked(req)
	if err != nil {
		return nil, err
	}
	rec := &nusav1.ReservationRecord{Reservation: &nusav1.Reservation{
		Id: id, Request: request, State: nusav1.ReservationState_RESERVATION_STATE_PROCESSING, Created: timestamppb.Now(), Job: jobName(id),
	}}
	if request.GetIdempotencyKey() != "" {
		rec.Fingerprint = printOf(request)
	}
	err = api.SubmitWith(ctx, b.cfg.Term, specOf(request, id), func(t *state.Tx) error {
		if b.present(t, id) != nil {
			return errExists
		}
		if err := wanted(t); err != nil {
			return err
		}
		return state.PutOther(t, recordKey(id), rec)
	})
	if errors.Is(err, errExists) {
		return b.again(id, rec.GetFingerprint())
	}
	if err != nil {
		return nil, problemsOf(err)
	}
	return rec.GetReservation(), nil
}

// again answers the repeated use of an idempotency key.
func (b *Book) again(id string, print []byte) (*nusav1.Reservation, error) {
	b.st.Lock()
	defer b.st.Unlock()
	e := b.byID[id]
	switch {
	case e == nil: // it was stored by the same transaction, which failed
		return nil, state.RPCErrors.Err(state.ErrRecall)
	case !bytes.Equal(e.print, print):
		return nil, status.Errorf(codes.AlreadyExists, "the idempotency key was used for another reservation, %s", id)
	}
	return e.rec, nil
}

// problemsOf returns the status of an error of a submit. The fields of the job are those of the request.
func problemsOf(err error) error {
	err = api.StatusOf(err)
	problems := rpcerr.Problems(err)
	if len(problems) == 0 {
		return err
	}
	for i, p := range problems {
		p = proto.CloneOf(p)
		field := strings.TrimPrefix(p.GetField(), "groups."+group+".")
		field = strings.TrimPrefix(field, "tasks."+group+".")
		switch field = strings.TrimPrefix(field, "resources."); field {
		case "cpu":
			field = "cpu_milli"
		case "memory":
			field = "memory_bytes"
		case "disk":
			field = "disk_bytes"
		}
		p.Field, problems[i] = field, p
	}
	return rpcerr.Refuse(status.Code(err), problems...)
}

// found returns a reservation that the caller may use.
func (s *Service) found(ctx context.Context, id string) (*Book, *nusav1.Reservation, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, nil, err
	}
	call := rights.Of(ctx)
	missing := func() error {
		if call.Confined() {
			return rpcerr.NotFound(kindReservation, id, fmt.Sprintf("there is no reservation %q that the caller may read", id))
		}
		return rpcerr.NotFound(kindReservation, id, fmt.Sprintf("there is no reservation %q: `nusa reservation list` shows them; old ones are forgotten", id))
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

// Get implements nusav1.ReservationsServer.
func (s *Service) Get(ctx context.Context, req *nusav1.GetReservationRequest) (*nusav1.Reservation, error) {
	b, r, err := s.found(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return b.withClaim(ctx, r)
}

// withClaim adds the text of the claim.
func (b *Book) withClaim(ctx context.Context, r *nusav1.Reservation) (*nusav1.Reservation, error) {
	if r.GetClaim() == nil {
		return r, nil
	}
	kv, ok, _, err := b.cfg.Term.Store.Get(ctx, claimKey(r.GetId()))
	if err != nil || !ok {
		return r, state.RPCErrors.Err(err)
	}
	rec := &nusav1.ReservationRecord{}
	if err := state.Decode(kv, rec); err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	out := proto.CloneOf(r)
	out.Claim = rec.GetReservation().GetClaim()
	return out, nil
}

// List implements nusav1.ReservationsServer.
func (s *Service) List(ctx context.Context, req *nusav1.ListReservationsRequest) (*nusav1.ListReservationsResponse, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = 100
	case limit < 1 || limit > 1000:
		return nil, rpcerr.Invalid(wrong("limit", "must be 1..1000"))
	}
	if token := req.GetPageToken(); token != "" && uuid.Validate(token) != nil {
		return nil, rpcerr.NoPage("page_token", token)
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	all, more := b.filter(req.GetPageToken(), limit, func(r *nusav1.Reservation) bool {
		return wanted(req, r) && (!filtered || call.May(r.GetRequest().GetNamespace(), ""))
	})
	out := &nusav1.ListReservationsResponse{Reservations: all}
	if more {
		out.NextPageToken = all[len(all)-1].GetId()
	}
	return out, nil
}

// wanted reports whether a list shows a reservation.
func wanted(req *nusav1.ListReservationsRequest, r *nusav1.Reservation) bool {
	of := r.GetRequest()
	for k, v := range req.GetLabels() {
		if got, has := of.GetLabels()[k]; !has || got != v {
			return false
		}
	}
	return (req.GetNamespace() == "" || req.GetNamespace() == of.GetNamespace()) &&
		(len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), r.GetState())) &&
		(req.GetRegion() == "" || req.GetRegion() == r.GetNode().GetRegion()) &&
		(req.GetPool() == "" || req.GetPool() == of.GetPool()) &&
		(req.GetClaimedBy() == "" || req.GetClaimedBy() == r.GetClaim().GetBy())
}

// Claim implements nusav1.ReservationsServer.
func (s *Service) Claim(ctx context.Context, req *nusav1.ClaimReservationRequest) (*nusav1.Reservation, error) {
	b, r, err := s.found(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	var problems []*nusav1.Problem
	if n := len(req.GetBy()); n == 0 || n > maxBy || !utf8.ValidString(req.GetBy()) {
		problems = append(problems, wrong("by", fmt.Sprintf("must have 1..%d bytes", maxBy)))
	}
	if len(req.GetText()) > maxText {
		problems = append(problems, wrong("text", fmt.Sprintf("has %d bytes, at most %d are allowed", len(req.GetText()), maxText)))
	}
	if len(problems) > 0 {
		return nil, rpcerr.Invalid(problems...)
	}
	id := r.GetId()
	full := &nusav1.ReservationClaim{By: req.GetBy(), Text: req.GetText(), At: timestamppb.Now()}
	out, err := b.change(ctx, id, func(t *state.Tx) error {
		var refused error
		err := b.edit(t, id, func(r *nusav1.Reservation) bool {
			switch by := r.GetClaim().GetBy(); {
			case r.GetState() != nusav1.ReservationState_RESERVATION_STATE_COMPLETED:
				refused = status.Errorf(codes.FailedPrecondition, "reservation %s is %s: only a completed one can be claimed", id, Word(r.GetState()))
			case by != "" && by != req.GetBy():
				refused = status.Errorf(codes.FailedPrecondition, "reservation %s is claimed by %s", id, by)
			}
			r.Claim = &nusav1.ReservationClaim{By: full.GetBy(), At: full.GetAt()}
			return refused == nil
		})
		if refused != nil || err != nil {
			return cmp.Or(refused, err)
		}
		if err := t.Audit(audit.Entry{Verb: "claim", Kind: kindReservation, Namespace: r.GetRequest().GetNamespace(), Name: id, Reason: "by " + full.GetBy()}); err != nil {
			return err
		}
		return state.PutOther(t, claimKey(id), &nusav1.ReservationRecord{Reservation: &nusav1.Reservation{Id: id, Claim: full}})
	})
	if err != nil {
		return nil, err
	}
	out = proto.CloneOf(out)
	out.Claim = full
	return out, nil
}

// change commits a change of a reservation, and returns the reservation.
func (b *Book) change(ctx context.Context, id string, prepare func(*state.Tx) error) (*nusav1.Reservation, error) {
	if _, err := b.cfg.Term.Commit.Do(ctx, prepare); err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	if r := b.find(id); r != nil {
		return r, nil
	}
	return nil, rpcerr.NotFound(kindReservation, id, fmt.Sprintf("reservation %q was forgotten", id))
}

// Release implements nusav1.ReservationsServer.
func (s *Service) Release(ctx context.Context, req *nusav1.ReleaseReservationRequest) (*nusav1.Reservation, error) {
	b, r, err := s.found(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return b.End(ctx, r, "released by a caller")
}

// End releases a reservation, unless it has ended.
func (b *Book) End(ctx context.Context, r *nusav1.Reservation, why string) (*nusav1.Reservation, error) {
	if r.GetEnded() != nil {
		return r, nil
	}
	id := r.GetId()
	return b.change(ctx, id, func(t *state.Tx) error {
		if now := b.present(t, id); now.GetReservation().GetEnded() != nil {
			return nil
		}
		e := audit.Entry{Verb: "release", Kind: kindReservation, Namespace: r.GetRequest().GetNamespace(), Name: id}
		return errors.Join(t.Audit(e), b.end(t, id, nusav1.ReservationState_RESERVATION_STATE_RELEASED, 0, why))
	})
}

// Word returns a state as people write it, for example "processing".
func Word(s nusav1.ReservationState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "RESERVATION_STATE_"))
}
