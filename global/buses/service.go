package buses

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/objects"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// Server is the public Buses service.
type Server struct {
	nusav1.UnimplementedBusesServer
	// Current returns the delivery of the present leadership term, or nil if this server is not active.
	Current func() *Term
}

// term returns the present term once its records are read. It fails only just after the end of a term,
// because a server that is not active forwards calls.
func (s *Server) term(ctx context.Context) (*Term, error) {
	t := s.Current()
	if t == nil {
		return nil, state.RPCErrors.Err(state.ErrNotActive)
	}
	return t, state.AwaitRecords(ctx, t.ended, t.buses.Ready())
}

// notFound returns NOT_FOUND for a bus.
func notFound(name string) error {
	return rpcerr.NotFound("bus", name, fmt.Sprintf("bus %q does not exist: see nusa bus list", name))
}

// byOperator is the text of events about what an operator did.
const byOperator = "by an operator"

// kindOf returns the type of the event for a verb of the audit trail.
var kindOf = map[string]string{"set": "bus.set", "delete": "bus.deleted", "disable": "bus.disabled", "enable": "bus.enabled", "skip": "bus.skipped"}

// Set implements nusav1.BusesServer.
func (s *Server) Set(ctx context.Context, req *nusav1.SetBusRequest) (*nusav1.Bus, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	name := req.GetBus().GetName()
	return t.change(ctx, name, "set", func(tx *state.Tx, old *nusav1.BusRecord) (*nusav1.BusRecord, error) {
		var problems Problems
		wrong := problems.Wrong("bus")
		secrets := SecretsFor(req.GetSecrets(), old.GetSecrets(), req.GetBus().GetBroker(), old.GetBus().GetBroker(), wrong)
		next := &nusav1.BusRecord{Bus: check(req.GetBus(), secrets, t.Policy, wrong), Secrets: secrets, Id: old.GetId()}
		if err := problems.Err(); err != nil {
			return nil, err
		}
		if err := state.CheckRevision("bus "+name, req.GetRevision(), old != nil, old.GetBus().GetRevision()); err != nil {
			return nil, err
		}
		next.Bus.Disabled = old.GetBus().GetDisabled()
		if old != nil {
			return next, nil
		}
		if err := t.buses.Room(tx, maxBuses, "buses"); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		next.Id = NewID()
		return next, t.progress.Put(tx, name, &nusav1.BusProgress{Id: next.GetId(), Cursor: t.Source.Last()})
	})
}

// change replaces the record of a bus, with an entry in the audit trail and an event. decide returns the
// new record; one that is equal but for its revision means no change. The verb skip changes what is published,
// not the record.
func (t *Term) change(ctx context.Context, name, verb string, decide func(tx *state.Tx, old *nusav1.BusRecord) (*nusav1.BusRecord, error)) (*nusav1.Bus, error) {
	var next *nusav1.BusRecord
	_, err := t.Commit.Do(ctx, func(tx *state.Tx) error {
		old, _ := t.buses.Of(tx, name)
		var err error
		next, err = decide(tx, old)
		if err != nil {
			return err
		}
		next = proto.CloneOf(next)
		next.Bus.Revision = old.GetBus().GetRevision()
		same := proto.Equal(old, next)
		if same && verb != "skip" {
			return nil
		}
		if !same {
			next.Bus.Revision = objects.NextRevision(tx, old.GetBus().GetRevision())
		}
		// The hash of a bus does not cover its secrets, because the trail is shown to others.
		e := audit.Entry{Verb: verb, Kind: "bus", Name: name, After: state.AuditHash(next.GetBus())}
		if old != nil {
			e.Before = state.AuditHash(old.GetBus())
		}
		if err := tx.Audit(e); err != nil {
			return err
		}
		tx.Event(kindOf[verb], name, "%s", byOperator)
		if same {
			return nil
		}
		return t.buses.Put(tx, name, next)
	})
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	return shown(next, t.statusOf(name)), nil
}

// statusOf returns how the delivery to a bus goes. It is nil just after the bus was created.
func (t *Term) statusOf(name string) *nusav1.BusStatus {
	if w, ok := t.crew.Of(name); ok {
		return w.status()
	}
	return nil
}

// Get implements nusav1.BusesServer.
func (s *Server) Get(ctx context.Context, req *nusav1.GetBusRequest) (*nusav1.Bus, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	rec, ok := t.buses.Get(req.GetName())
	if !ok {
		return nil, notFound(req.GetName())
	}
	return shown(rec, t.statusOf(req.GetName())), nil
}

// List implements nusav1.BusesServer.
func (s *Server) List(ctx context.Context, req *nusav1.ListBusesRequest) (*nusav1.ListBusesResponse, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	if err := filter.CheckEnum(req.GetStates()); err != nil {
		return nil, err
	}
	all, out := t.buses.All(), &nusav1.ListBusesResponse{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := shown(all[name], t.statusOf(name))
		if len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), one.GetStatus().GetState()) {
			out.Buses = append(out.Buses, one)
		}
	}
	return out, nil
}

// Delete implements nusav1.BusesServer.
func (s *Server) Delete(ctx context.Context, req *nusav1.DeleteBusRequest) (*nusav1.DeleteBusResponse, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	_, err = t.Commit.Do(ctx, func(tx *state.Tx) error {
		old, ok := t.buses.Of(tx, name)
		if !ok {
			return notFound(name)
		}
		if err := tx.Audit(audit.Entry{Verb: "delete", Kind: "bus", Name: name, Before: state.AuditHash(old.GetBus())}); err != nil {
			return err
		}
		tx.Event(kindOf["delete"], name, "%s", byOperator)
		if err := t.progress.Delete(tx, name); err != nil {
			return err
		}
		return t.buses.Delete(tx, name)
	})
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	return &nusav1.DeleteBusResponse{}, nil
}

// Disable implements nusav1.BusesServer.
func (s *Server) Disable(ctx context.Context, req *nusav1.DisableBusRequest) (*nusav1.Bus, error) {
	return s.enable(ctx, req.GetName(), "disable")
}

// Enable implements nusav1.BusesServer.
func (s *Server) Enable(ctx context.Context, req *nusav1.EnableBusRequest) (*nusav1.Bus, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetSkip() { // first, so that what is left out is not published for a moment
		_, err := t.change(ctx, req.GetName(), "skip", func(_ *state.Tx, old *nusav1.BusRecord) (*nusav1.BusRecord, error) {
			if old == nil {
				return nil, notFound(req.GetName())
			}
			return old, nil
		})
		if err != nil {
			return nil, err
		}
	}
	if w, ok := t.crew.Of(req.GetName()); ok {
		w.hurry(req.GetSkip())
	}
	return s.enable(ctx, req.GetName(), "enable")
}

// enable stores whether a bus is disabled.
func (s *Server) enable(ctx context.Context, name, verb string) (*nusav1.Bus, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	return t.change(ctx, name, verb, func(_ *state.Tx, old *nusav1.BusRecord) (*nusav1.BusRecord, error) {
		if old == nil {
			return nil, notFound(name)
		}
		next := proto.CloneOf(old)
		next.Bus.Disabled = verb == "disable"
		return next, nil
	})
}

// Test implements nusav1.BusesServer.
func (s *Server) Test(ctx context.Context, req *nusav1.TestBusRequest) (*nusav1.TestBusResponse, error) {
	t, err := s.term(ctx)
	if err != nil {
		return nil, err
	}
	rec, ok := t.buses.Get(req.GetName())
	if !ok {
		return nil, notFound(req.GetName())
	}
	b, err := newBus(rec, t.Policy)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "this server cannot use the stored bus: %s", err)
	}
	select {
	case t.tests <- struct{}{}:
		defer func() { <-t.tests }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d tests of buses are in progress: repeat the call later", maxTests)
	}
	began := t.Now()
	e := &nusav1.Event{Type: "bus.test", Subject: req.GetName(), Message: "a test of this bus", Time: timestamppb.New(began), Log: "test"}
	m := messageOf(e, 0)
	m.ID = "test-" + strings.ToLower(rand.Text())
	m.Body = cloudevent.OfID(m.ID, e).JSON()
	err = t.try(ctx, b, m)
	out := &nusav1.TestBusResponse{Id: m.ID, Duration: durationpb.New(t.Now().Sub(began))}
	if err != nil {
		out.Error = err.Error()
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return out, nil
}

// try publishes one message over a connection of its own.
func (t *Term) try(ctx context.Context, b *bus, m broker.Message) error {
	dialed, cancel := context.WithTimeoutCause(ctx, publishTime, fmt.Errorf("no connection within %s", publishTime))
	defer cancel()
	conn, err := t.Dial(dialed, b.target, b.sink)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel = context.WithTimeout(ctx, publishTime)
	defer cancel()
	_, err = conn.Publish(ctx, []broker.Message{m})
	return err
}
