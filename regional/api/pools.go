package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// maxPools bounds the pools of a region that have a policy.
const maxPools = 256

// kindPool is the kind of pools in errors and in the audit trail.
const kindPool = "pool"

// nodePools is the Pools service: the policies of the region's node pools.
type nodePools struct {
	nusav1.UnimplementedPoolsServer
	s *Server
}

// own refuses the name of another region.
func (p nodePools) own(region string) error {
	if own := p.s.region(); region != "" && region != own {
		return notFound(rpcerr.KindRegion, region, "this is region %q, not %q", own, region)
	}
	return nil
}

// all returns the pools that have nodes or a policy, sorted by name.
func (p nodePools) all(view *state.View) ([]*nusav1.Pool, error) {
	found := map[string]*nusav1.Pool{}
	pool := func(name string) *nusav1.Pool {
		if found[name] == nil {
			found[name] = &nusav1.Pool{Name: name, Region: p.s.region(), Weights: &nusav1.PoolWeights{}}
		}
		return found[name]
	}
	for n := range view.Nodes() {
		if n.Status != state.NodeLeft {
			pool(n.Pool).Nodes++
		}
	}
	for d := range view.Documents(wire.PoolPrefix) {
		w, err := wire.ReadWeights(d)
		if err != nil {
			return nil, status.Error(codes.DataLoss, err.Error())
		}
		x := pool(strings.TrimPrefix(d.Key, wire.PoolPrefix))
		x.Weights, x.Revision = wire.WeightsToProto(w), int64(d.Version)
	}
	out := make([]*nusav1.Pool, 0, len(found))
	for _, x := range found {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b *nusav1.Pool) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// List implements nusav1.PoolsServer.
func (p nodePools) List(ctx context.Context, req *nusav1.ListPoolsRequest) (*nusav1.ListPoolsResponse, error) {
	if err := p.own(req.GetRegion()); err != nil {
		return nil, err
	}
	if call := rights.Of(ctx); call.Filtered() && !call.May("", "") {
		return &nusav1.ListPoolsResponse{}, nil
	}
	all, err := p.all(p.s.State.View())
	return &nusav1.ListPoolsResponse{Pools: all}, err
}

// Get implements nusav1.PoolsServer.
func (p nodePools) Get(_ context.Context, req *nusav1.GetPoolRequest) (*nusav1.Pool, error) {
	if err := p.own(req.GetRegion()); err != nil {
		return nil, err
	}
	return p.find(req.GetName())
}

// find returns the pool with a name.
func (p nodePools) find(name string) (*nusav1.Pool, error) {
	all, err := p.all(p.s.State.View())
	if err != nil {
		return nil, err
	}
	for _, x := range all {
		if x.GetName() == name {
			return x, nil
		}
	}
	return nil, notFound(kindPool, name, "pool %q has no node and no policy in region %s: `nusa pool list` shows the pools", name, p.s.region())
}

// checkPool returns what is wrong with the policy of a pool.
func checkPool(x *nusav1.Pool) error {
	var problems []*nusav1.Problem
	if !job.ValidName(x.GetName()) {
		problems = append(problems, &nusav1.Problem{Field: "pool.name", Message: "must be 1 to 63 of a-z, 0-9 and -, beginning with a letter"})
	}
	if field, message := wire.WeightsFromProto(x.GetWeights()).Fault(); field != "" {
		problems = append(problems, &nusav1.Problem{Field: "pool.weights." + field, Message: message})
	}
	if problems == nil {
		return nil
	}
	return rpcerr.Invalid(problems...)
}

// Set implements nusav1.PoolsServer.
func (p nodePools) Set(ctx context.Context, req *nusav1.SetPoolRequest) (*nusav1.Pool, error) {
	if err := p.own(req.GetRegion()); err != nil {
		return nil, err
	}
	if err := checkPool(req.GetPool()); err != nil {
		return nil, err
	}
	w := wire.WeightsFromProto(req.GetPool().GetWeights())
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(wire.WeightsToProto(w))
	if err != nil {
		return nil, err
	}
	name := req.GetPool().GetName()
	view := p.s.State.View()
	old, exists := view.Document(wire.PoolPrefix + name)
	change := &state.ChangeDocuments{Puts: []state.Document{{Key: wire.PoolPrefix + name, Value: value}}}
	switch want := req.GetRevision(); {
	case want < -1:
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "revision", Message: "must be -1, 0, or a revision"})
	case want == -1:
		change.Checks = []state.DocumentCheck{{Key: wire.PoolPrefix + name}}
	case want > 0:
		change.Checks = []state.DocumentCheck{{Key: wire.PoolPrefix + name, Version: uint64(want)}}
	}
	if !exists {
		stored := 0
		for range view.Documents(wire.PoolPrefix) {
			stored++
		}
		if stored >= maxPools {
			return nil, status.Errorf(codes.ResourceExhausted, "%d pools of region %s have a policy, at most %d: remove one with `nusa pool remove`", stored, p.s.region(), maxPools)
		}
	}
	if exists && len(change.Checks) == 0 && string(old.Value) == string(value) {
		return p.find(name)
	}
	entry := audit.Entry{Verb: "set", Kind: kindPool, Name: name, Region: p.s.region(), Reason: fmt.Sprintf("weights: cpu %d, memory %d, quota %d", w.CPU, w.Memory, w.Quota)}
	if err := p.commit(ctx, change, entry); err != nil {
		return nil, err
	}
	return p.find(name)
}

// Remove implements nusav1.PoolsServer.
func (p nodePools) Remove(ctx context.Context, req *nusav1.RemovePoolRequest) (*nusav1.RemovePoolResponse, error) {
	if err := p.own(req.GetRegion()); err != nil {
		return nil, err
	}
	key := wire.PoolPrefix + req.GetName()
	if _, exists := p.s.State.View().Document(key); !exists {
		return &nusav1.RemovePoolResponse{}, nil
	}
	entry := audit.Entry{Verb: "remove", Kind: kindPool, Name: req.GetName(), Region: p.s.region()}
	if err := p.commit(ctx, &state.ChangeDocuments{Deletes: []string{key}}, entry); err != nil {
		return nil, err
	}
	return &nusav1.RemovePoolResponse{Removed: true}, nil
}

// commit stores a change of policies with its entry in the audit trail.
func (p nodePools) commit(ctx context.Context, change *state.ChangeDocuments, e audit.Entry) error {
	m, err := p.s.master()
	if err != nil {
		return err
	}
	if level := p.s.State.View().Cluster().FeatureLevel; level < state.DocumentLevel {
		return status.Errorf(codes.FailedPrecondition, "region %s has servers of an earlier version (feature level %d), so it cannot store policies of pools: upgrade all its servers", p.s.region(), level)
	}
	_, err = m.Log.Commit(ctx, p.s.audited(ctx, state.Command{ChangeDocuments: change}, e))
	return raftlog.StatusError(err)
}
