package api

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// regionsAPI is the public Regions service.
type regionsAPI struct {
	nusav1.UnimplementedRegionsServer
	s *Services
}

// Rebind implements nusav1.RegionsServer. It fails, because only a region can join another
// federation.
func (g *regionsAPI) Rebind(context.Context, *nusav1.RebindRegionRequest) (*nusav1.RebindRegionResponse, error) {
	return nil, status.Error(codes.FailedPrecondition, "this is a global server: send the call to a server of the region (--addr HOST:7610)")
}

// Verify implements nusav1.RegionsServer. The region's master compares its servers.
func (g *regionsAPI) Verify(ctx context.Context, req *nusav1.GetRegionRequest) (*nusav1.VerifyRegionResponse, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	conn, err := term.dial(req.GetName())
	if err != nil {
		return nil, err
	}
	return nusav1.NewRegionsClient(conn).Verify(ctx, req)
}

// Define implements nusav1.RegionsServer.
func (g *regionsAPI) Define(ctx context.Context, req *nusav1.DefineRegionRequest) (*nusav1.Region, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	def := req.GetDefinition()
	if err := job.ValidateRegion(def); err != nil {
		return nil, rpcError(err)
	}
	name := def.GetName()
	_, err = term.Commit.Do(ctx, func(t *state.Tx) error {
		old, revision := t.Region(name)
		if err := state.CheckRevision("region "+name, req.GetCheckRevision(), old != nil, revision); err != nil {
			return err
		}
		next := &nusav1.Region{}
		if old != nil {
			next = proto.CloneOf(old)
		}
		next.Definition, next.DefinedByOperator = def, true
		e := audit.Entry{Verb: "define", Kind: "region", Name: name, Region: name, Before: state.AuditHash(old.GetDefinition()), After: state.AuditHash(def)}
		if err := t.Audit(e); err != nil {
			return err
		}
		t.Event("region.defined", name, "by an operator")
		return t.PutRegion(name, next)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return term.region(name)
}

// List implements nusav1.RegionsServer.
func (g *regionsAPI) List(ctx context.Context, req *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	if err := filter.Check(req.GetStates(), filter.RegionStates); err != nil {
		return nil, err
	}
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	out := slices.DeleteFunc(term.regions(req.GetLabels()), func(r *nusav1.Region) bool {
		return filtered && !call.May("", r.GetDefinition().GetName()) || !filter.Has(req.GetStates(), filter.Region(r)...)
	})
	return &nusav1.ListRegionsResponse{Regions: out}, nil
}

// Get implements nusav1.RegionsServer.
func (g *regionsAPI) Get(_ context.Context, req *nusav1.GetRegionRequest) (*nusav1.Region, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	return term.region(req.GetName())
}

// Cordon implements nusav1.RegionsServer.
func (g *regionsAPI) Cordon(ctx context.Context, req *nusav1.CordonRegionRequest) (*nusav1.Region, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if _, err := term.region(name); err != nil {
		return nil, err
	}
	_, err = term.Commit.Do(ctx, func(t *state.Tx) error {
		old, _ := t.Region(name)
		if old == nil {
			return status.Errorf(codes.NotFound, "region %q does not exist", name)
		}
		if old.GetCordoned() == req.GetCordon() {
			return nil
		}
		next := proto.CloneOf(old)
		next.Cordoned = req.GetCordon()
		if err := t.Audit(audit.Entry{Verb: "cordon", Kind: "region", Name: name, Region: name, Reason: onOff(req.GetCordon())}); err != nil {
			return err
		}
		t.Event("region."+eventKind(req.GetCordon(), "cordoned", "uncordoned"), name, "by an operator")
		return t.PutRegion(name, next)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return term.region(name)
}

// Remove implements nusav1.RegionsServer.
func (g *regionsAPI) Remove(ctx context.Context, req *nusav1.GetRegionRequest) (*nusav1.RemoveRegionResponse, error) {
	term, err := g.s.term()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if _, err := term.region(name); err != nil {
		return nil, err
	}
	_, err = term.Commit.Do(ctx, func(t *state.Tx) error {
		owned, ended := t.CountSlots(name)
		if owned > 0 && owned == ended {
			return status.Errorf(codes.FailedPrecondition, "region %s still owns slots: %d, of instances that have ended; "+
				"`nusa region lose %s` states that nothing runs there, and keeps on record how they ended", name, owned, name)
		}
		if owned > 0 {
			return status.Errorf(codes.FailedPrecondition, "region %s still owns slots: %d; cordon it and stop or move its jobs first", name, owned)
		}
		if r := t.State.Regions[name]; r != nil && r.Session != nil {
			return status.Errorf(codes.FailedPrecondition, "region %s is connected and would register again; stop its servers first", name)
		}
		if former := t.CountFormer(name); former > 0 {
			if rec, _ := t.Region(name); !rec.GetLost().GetNothingRuns() {
				return status.Errorf(codes.FailedPrecondition, "region %s may still run what other regions own now, slots: %d; connect it so that it confirms, "+
					"or state with `nusa region lose %s` that nothing runs there", name, former, name)
			}
		}
		if err := t.Audit(audit.Entry{Verb: "remove", Kind: "region", Name: name, Region: name}); err != nil {
			return err
		}
		t.Event("region.removed", name, "by an operator")
		return t.DeleteRegion(name)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return &nusav1.RemoveRegionResponse{}, nil
}

// Watch implements nusav1.RegionsServer.
func (g *regionsAPI) Watch(req *nusav1.ListRegionsRequest, stream grpc.ServerStreamingServer[nusav1.Region]) error {
	if len(req.GetStates()) > 0 {
		return invalid("states", "select regions in a list only: a watch tells each change of state")
	}
	term, err := g.s.term()
	if err != nil {
		return err
	}
	sent := map[string]uint64{}
	call := rights.Of(stream.Context())
	filtered := call.Filtered()
	return term.follow(stream.Context(), func() (<-chan struct{}, error) {
		changed := term.State.Changed.C()
		term.State.Lock()
		var out []*nusav1.Region
		for _, name := range term.State.RegionNames() {
			r := term.State.Regions[name]
			if stamp, seen := sent[name]; seen && stamp == r.Stamp || !filter.Labels(r.Record.GetDefinition().GetLabels(), req.GetLabels()) {
				continue
			}
			sent[name] = r.Stamp
			if filtered && !call.May("", name) {
				continue
			}
			out = append(out, r.ToProto(term.State.Sight()))
		}
		term.State.Unlock()
		for _, r := range out {
			if err := stream.Send(r); err != nil {
				return nil, err
			}
		}
		return changed, nil
	})
}
