package intakes

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/buses"
	"github.com/nusa-scheduler/nusa/global/objects"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Server is the public Intakes service.
type Server struct {
	nusav1.UnimplementedIntakesServer
	// Current returns the intakes of the present leadership term, or nil if this server is not active.
	Current func() *Term
}

// term returns the present term once its records are read.
func (s *Server) term(ctx context.Context) (*Term, error) {
	t := s.Current()
	if t == nil {
		return nil, state.RPCErrors.Err(state.ErrNotActive)
	}
	return t, state.AwaitRecords(ctx, t.ended, t.intakes.Ready())
}

// notFound returns NOT_FOUND for an intake.
func notFound(name string) error {
	return rpcerr.NotFound("intake", name, fmt.Sprintf("intake %q does not exist: see nusa intake list", name))
}

// kindOf returns the type of the event for a verb of the audit trail.
var kindOf = map[string]string{"set": "intake.set", "delete": "intake.deleted", "disable": "intake.disabled", "enable": "intake.enabled"}

// Set implements nusav1.IntakesServer.
func (s *Server) Set(ctx context.Context, req *nusav1.SetIntakeRequest) (*nusav1.Intake, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	principal := ""
	if call := rights.Of(ctx); call != nil {
		_, who := call.Standing()
		principal = who.Name
	}
	if _, err := t.callOf(principal, filled(req.GetIntake()).GetNamespace()); err != nil {
		return nil, status.Errorf(status.Code(err), "%s, and an intake has the rights of who stores it", status.Convert(err).Message())
	}
	name := req.GetIntake().GetName()
	return t.change(ctx, name, "set", func(tx *state.Tx, old *nusav1.IntakeRecord) (*nusav1.IntakeRecord, error) {
		var problems buses.Problems
		wrong := problems.Wrong("intake")
		secrets := buses.SecretsFor(req.GetSecrets(), old.GetSecrets(), req.GetIntake().GetBroker(), old.GetIntake().GetBroker(), wrong)
		next := &nusav1.IntakeRecord{Intake: check(req.GetIntake(), secrets, t.Policy, wrong), Secrets: secrets, Id: old.GetId()}
		if err := problems.Err(); err != nil {
			return nil, err
		}
		if err := state.CheckRevision("intake "+name, req.GetRevision(), old != nil, old.GetIntake().GetRevision()); err != nil {
			return nil, err
		}
		next.Intake.Disabled, next.Intake.Principal = old.GetIntake().GetDisabled(), principal
		if old != nil {
			return next, nil
		}
		if err := t.intakes.Room(tx, maxIntakes, "intakes"); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		next.Id = buses.NewID()
		return next, nil
	})
}

// change replaces the record of an intake, with an entry in the audit trail and an event. decide returns the
// new record; one that is equal but for its revision means no change.
func (t *Term) change(ctx context.Context, name, verb string, decide func(tx *state.Tx, old *nusav1.IntakeRecord) (*nusav1.IntakeRecord, error)) (*nusav1.Intake, error) {
	var next *nusav1.IntakeRecord
	_, err := t.Commit.Do(ctx, func(tx *state.Tx) error {
		old, _ := t.intakes.Of(tx, name)
		var err error
		next, err = decide(tx, old)
		if err != nil {
			return err
		}
		next = proto.CloneOf(next)
		next.Intake.Revision = old.GetIntake().GetRevision()
		if proto.Equal(old, next) {
			return nil
		}
		next.Intake.Revision = objects.NextRevision(tx, old.GetIntake().GetRevision())
		// The hash of an intake does not cover its secrets, because the trail is shown to others.
		e := audit.Entry{Verb: verb, Kind: "intake", Name: name, After: state.AuditHash(next.GetIntake())}
		if old != nil {
			e.Before = state.AuditHash(old.GetIntake())
		}
		if err := tx.Audit(e); err != nil {
			return err
		}
		tx.Event(kindOf[verb], name, "by an operator")
		return t.intakes.Put(tx, name, next)
	})
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	return shown(next, t.statusOf(name)), nil
}

// statusOf returns how an intake goes. It is nil just after the intake was created.
func (t *Term) statusOf(name string) *nusav1.IntakeStatus {
	if w, ok := t.crew.Of(name); ok {
		return w.status()
	}
	return nil
}

// Get implements nusav1.IntakesServer.
func (s *Server) Get(ctx context.Context, req *nusav1.GetIntakeRequest) (*nusav1.Intake, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	rec, ok := t.intakes.Get(req.GetName())
	if !ok {
		return nil, notFound(req.GetName())
	}
	return shown(rec, t.statusOf(req.GetName())), nil
}

// List implements nusav1.IntakesServer.
func (s *Server) List(ctx context.Context, req *nusav1.ListIntakesRequest) (*nusav1.ListIntakesResponse, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	if err := filter.CheckEnum(req.GetStates()); err != nil {
		return nil, err
	}
	all, out := t.intakes.All(), &nusav1.ListIntakesResponse{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := shown(all[name], t.statusOf(name))
		if len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), one.GetStatus().GetState()) {
			out.Intakes = append(out.Intakes, one)
		}
	}
	return out, nil
}

// Delete implements nusav1.IntakesServer.
func (s *Server) Delete(ctx context.Context, req *nusav1.DeleteIntakeRequest) (*nusav1.DeleteIntakeResponse, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	_, err = t.Commit.Do(ctx, func(tx *state.Tx) error {
		old, ok := t.intakes.Of(tx, name)
		if !ok {
			return notFound(name)
		}
		if err := tx.Audit(audit.Entry{Verb: "delete", Kind: "intake", Name: name, Before: state.AuditHash(old.GetIntake())}); err != nil {
			return err
		}
		tx.Event(kindOf["delete"], name, "by an operator")
		return t.intakes.Delete(tx, name)
	})
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	return &nusav1.DeleteIntakeResponse{}, nil
}

// Disable implements nusav1.IntakesServer.
func (s *Server) Disable(ctx context.Context, req *nusav1.DisableIntakeRequest) (*nusav1.Intake, error) {
	return s.enable(ctx, req.GetName(), "disable")
}

// Enable implements nusav1.IntakesServer.
func (s *Server) Enable(ctx context.Context, req *nusav1.EnableIntakeRequest) (*nusav1.Intake, error) {
	return s.enable(ctx, req.GetName(), "enable")
}

// enable stores whether an intake is disabled.
func (s *Server) enable(ctx context.Context, name, verb string) (*nusav1.Intake, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	if w, ok := t.crew.Of(name); ok {
		w.hurry()
	}
	return t.change(ctx, name, verb, func(_ *state.Tx, old *nusav1.IntakeRecord) (*nusav1.IntakeRecord, error) {
		if old == nil {
			return nil, notFound(name)
		}
		next := proto.CloneOf(old)
		next.Intake.Disabled = verb == "disable"
		return next, nil
	})
}
