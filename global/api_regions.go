package global

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxRegions bounds the regions of a federation, presented ones included.
const maxRegions = 1024

// regionsAPI is the public Regions service.
type regionsAPI struct {
	nusav1.UnimplementedRegionsServer
	s *server
}

// known answers a region as the API shows it, or that there is none.
func (a *active) known(name string) (*nusav1.Region, error) {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	if r := a.st.Regions[name]; r != nil {
		return a.st.RegionView(r), nil
	}
	return nil, status.Errorf(codes.NotFound, "region %q does not exist; there are %s", name, topo.ListNames(a.st.RegionNames()))
}

// Verify implements nusav1.RegionsServer: the region's master compares.
func (g *regionsAPI) Verify(ctx context.Context, req *nusav1.GetRegionRequest) (*nusav1.VerifyRegionResponse, error) {
	a, err := g.s.current()
	if err != nil {
		return nil, err
	}
	conn, err := a.dial(req.GetName())
	if err != nil {
		return nil, err
	}
	return nusav1.NewRegionsClient(conn).Verify(ctx, req)
}

// Define implements nusav1.RegionsServer.
func (g *regionsAPI) Define(ctx context.Context, req *nusav1.DefineRegionRequest) (*nusav1.Region, error) {
	a, err := g.s.current()
	if err != nil {
		return nil, err
	}
	def := req.GetDefinition()
	if err := job.ValidateRegion(def); err != nil {
		return nil, apiError(err)
	}
	name := def.GetName()
	_, err = a.commit.Do(ctx, func(t *Tx) error {
		old, revision := t.Region(name)
		if err := CheckRevision("region "+name, req.GetCheckRevision(), old != nil, revision); err != nil {
			return err
		}
		next := &nusav1.Region{}
		if old != nil {
			next = proto.CloneOf(old)
		}
		next.Definition, next.DefinedByOperator = def, true
		if err := t.Audit("region.defined", name, ""); err != nil {
			return err
		}
		return t.PutRegion(name, next)
	})
	if err != nil {
		return nil, apiError(err)
	}
	a.st.Events.Add("region.defined", name, "by an operator")
	return a.known(name)
}

// List implements nusav1.RegionsServer.
func (g *regionsAPI) List(_ context.Context, req *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	a, err := g.s.current()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListRegionsResponse{Regions: a.regions(req.GetLabels())}, nil
}

// regions are all that have the labels, by name.
func (a *active) regions(labels map[string]string) []*nusav1.Region {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	var out []*nusav1.Region
	for _, name := range a.st.RegionNames() {
		r := a.st.Regions[name]
		if hasLabels(r.Record.GetDefinition().GetLabels(), labels) {
			out = append(out, a.st.RegionView(r))
		}
	}
	return out
}

// Get implements nusav1.RegionsServer.
func (g *regionsAPI) Get(_ context.Context, req *nusav1.GetRegionRequest) (*nusav1.Region, error) {
	a, err := g.s.current()
	if err != nil {
		return nil, err
	}
	return a.known(req.GetName())
}

// Cordon implements nusav1.RegionsServer.
func (g *regionsAPI) Cordon(ctx context.Context, req *nusav1.CordonRegionRequest) (*nusav1.Region, error) {
	a, err := g.s.current()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if _, err := a.known(name); err != nil {
		return nil, err
	}
	changed := false
	_, err = a.commit.Do(ctx, func(t *Tx) error {
		old, _ := t.Region(name)
		if old == nil {
			return status.Errorf(codes.NotFound, "region %q does not exist", name)
		}
		if changed = old.GetCordoned() != req.GetCordon(); !changed {
			return nil
		}
		next := proto.CloneOf(old)
		next.Cordoned = req.GetCordon()
		if err := t.Audit("region.cordoned", name, fmt.Sprint(req.GetCordon())); err != nil {
			return err
		}
		return t.PutRegion(name, next)
	})
	if err != nil {
		return nil, apiError(err)
	}
	if changed {
		a.st.Events.Add("region."+lifted(req.GetCordon(), "cordoned", "uncordoned"), name, "by an operator")
	}
	return a.known(name)
}

// Remove implements nusav1.RegionsServer.
func (g *regionsAPI) Remove(ctx context.Context, req *nusav1.GetRegionRequest) (*nusav1.RemoveRegionResponse, error) {
	a, err := g.s.current()
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if _, err := a.known(name); err != nil {
		return nil, err
	}
	_, err = a.commit.Do(ctx, func(t *Tx) error {
		if owned := t.CountSlots(name); owned > 0 {
			return status.Errorf(codes.FailedPrecondition, "region %s owns %d slots; cordon it and stop or move its jobs first", name, owned)
		}
		if r := t.State.Regions[name]; r != nil && r.Session != nil {
			return status.Errorf(codes.FailedPrecondition, "region %s is connected and would present itself again; stop its servers first", name)
		}
		if err := t.Audit("region.removed", name, ""); err != nil {
			return err
		}
		return t.DeleteRegion(name)
	})
	if err != nil {
		return nil, apiError(err)
	}
	a.st.Events.Add("region.removed", name, "by an operator")
	return &nusav1.RemoveRegionResponse{}, nil
}

// CountSlots counts a region's slots as the transaction leaves them.
func (t *Tx) CountSlots(region string) int {
	n := 0
	for _, j := range t.State.Jobs {
		for _, s := range j.Slots {
			if s.Region == region {
				if _, changed := t.find(slotKey(s)); !changed {
					n++
				}
			}
		}
	}
	for _, ch := range t.changes {
		if s, ok := ch.msg.(*nusav1.Slot); ok && s.GetRegion() == region {
			n++
		}
	}
	return n
}

// Watch implements nusav1.RegionsServer.
func (g *regionsAPI) Watch(req *nusav1.ListRegionsRequest, stream grpc.ServerStreamingServer[nusav1.Region]) error {
	a, err := g.s.current()
	if err != nil {
		return err
	}
	sent := map[string]uint64{}
	return a.follow(stream.Context(), func() (bool, error) {
		a.st.mu.Lock()
		var out []*nusav1.Region
		for _, name := range a.st.RegionNames() {
			r := a.st.Regions[name]
			if stamp, seen := sent[name]; seen && stamp == r.Stamp || !hasLabels(r.Record.GetDefinition().GetLabels(), req.GetLabels()) {
				continue
			}
			sent[name] = r.Stamp
			out = append(out, a.st.RegionView(r))
		}
		a.st.mu.Unlock()
		for _, r := range out {
			if err := stream.Send(r); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}
