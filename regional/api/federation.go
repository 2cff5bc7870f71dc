package api

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// federationID matches the id of a federation. crypto/rand.Text makes such ids.
var federationID = lazyregexp.New(`^[A-Z2-7]{26,128}$`)

// Uplink is the region's session with the global tier: *uplink.Uplink.
type Uplink interface {
	// Connected reports whether a session exists.
	Connected() bool
	// Refused returns why the region stays without a session until an operator acts. It is
	// empty when no such reason is known.
	Refused() string
	// LeaseMissing returns why the region holds no lease. It is empty when the region holds
	// a lease, and when leases are not in use.
	LeaseMissing() string
	// CommitBlocked returns for how long the region has been unable to commit to its log.
	// It is 0 while the region can commit.
	CommitBlocked() time.Duration
}

// Rebind lets the region join another federation.
func (r regions) Rebind(ctx context.Context, req *nusav1.RebindRegionRequest) (*nusav1.RebindRegionResponse, error) {
	m, err := r.s.master()
	if err != nil {
		return nil, err
	}
	id, c := req.GetFederationId(), r.s.State.View().Cluster()
	switch {
	case !federationID().MatchString(id):
		return nil, status.Errorf(codes.InvalidArgument, "%.40q is not the id of a federation, which has 26 letters A-Z and digits 2-7: `nusa version --server` at a global server of the federation prints it", id)
	case m.Uplink.Connected() && id == c.FederationID:
		return &nusav1.RebindRegionResponse{}, nil
	case m.Uplink.Connected():
		return nil, status.Errorf(codes.FailedPrecondition, "region %s is connected to federation %s: end that session first, for instance by a restart of its servers without --global", c.Region, c.FederationID)
	case c.FeatureLevel == 0:
		return nil, status.Errorf(codes.FailedPrecondition, "a server of region %s is of an earlier version: upgrade it first", c.Region)
	}
	e := audit.Entry{Verb: "rebind", Kind: "region", Name: c.Region, Reason: "to federation " + id}
	if _, err := m.Log.Commit(ctx, r.s.audited(ctx, state.Command{RebindFederation: &state.RebindFederation{FederationID: id}}, e)); err != nil {
		return nil, raftlog.StatusError(err)
	}
	return &nusav1.RebindRegionResponse{}, nil
}

// alarms returns the facts that an operator must know, one line each.
func alarms(s *Server, m *Master) []string {
	var out []string
	if blocked := m.Uplink.CommitBlocked(); blocked > 0 {
		out = append(out, fmt.Sprintf("the region has been unable to commit to its log for %s: look at the disks of its servers", blocked.Round(time.Second)))
	}
	if why := m.Uplink.Refused(); why != "" {
		out = append(out, why)
	}
	if why := m.Nodes.OldLog(); why != "" {
		out = append(out, why)
	}
	if s.State.View().Cluster().Recovered {
		out = append(out, "the region was recovered: nothing that a lease binds starts before every earlier lease is over")
	}
	return out
}

// overrides is the Overrides service of a region.
type overrides struct {
	nusav1.UnimplementedOverridesServer
	s *Server
}

// List implements nusav1.OverridesServer.
func (o overrides) List(ctx context.Context, req *nusav1.ListOverridesRequest) (*nusav1.ListOverridesResponse, error) {
	if err := (nodePools{s: o.s}).own(req.GetRegion()); err != nil {
		return nil, err
	}
	if err := filter.Check(req.GetStates(), filter.OverrideStates); err != nil {
		return nil, err
	}
	out, call, view := &nusav1.ListOverridesResponse{}, rights.Of(ctx), o.s.State.View()
	for x := range view.Overrides() {
		if call.Filtered() && !call.May(x.Namespace, o.s.region()) || req.GetNamespace() != "" && x.Namespace != req.GetNamespace() {
			continue
		}
		if !filter.Labels(o.labels(view, x, len(req.GetLabels())), req.GetLabels()) {
			continue
		}
		if one := o.toProto(view, x); filter.Has(req.GetStates(), filter.Override(one)...) {
			out.Overrides = append(out.Overrides, one)
		}
	}
	return out, nil
}

// labels returns the labels of the job of an override, if a request has labels.
func (o overrides) labels(view *state.View, x *state.Override, asked int) map[string]string {
	if asked == 0 {
		return nil
	}
	key, version := state.JobKey{Namespace: x.Namespace, Job: x.Job}, int64(0)
	for g := range view.JobGroups(key) {
		for _, s := range g.Slots {
			version = max(version, s.JobVersion)
		}
	}
	j, ok := view.Job(key, version)
	if !ok {
		return nil
	}
	labels, _ := wire.EncodedLabels(j.Spec) // a spec that cannot be read has none
	return labels
}

func (o overrides) toProto(view *state.View, x *state.Override) *nusav1.Override {
	return wire.OverrideToProto(x, o.s.region(), view.Held(state.JobKey{Namespace: x.Namespace, Job: x.Job}))
}

// Set implements nusav1.OverridesServer.
func (o overrides) Set(ctx context.Context, req *nusav1.SetOverrideRequest) (*nusav1.Override, error) {
	k, err := o.job(req.GetJob(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	cmd := &state.SetOverride{
		Namespace: k.Namespace, Job: k.Job, Stop: req.GetStop(), Group: req.GetGroup(), Count: req.GetCount(), Reason: req.GetReason(), By: setter(ctx, req),
	}
	switch {
	case cmd.Stop && (cmd.Group != "" || cmd.Count != 0):
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "stop", Message: "stops every group, so group and count must be unset"})
	case cmd.Count < 0 || cmd.Count > state.MaxInstances:
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "count", Message: fmt.Sprintf("must be 0..%d", state.MaxInstances)})
	case len(cmd.Reason) > maxReason:
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "reason", Message: fmt.Sprintf("has %d bytes, at most %d", len(cmd.Reason), maxReason)})
	}
	e := audit.Entry{Verb: "override", Kind: rpcerr.KindJob, Namespace: k.Namespace, Name: k.Job, Region: o.s.region(), Reason: "stop"}
	if !cmd.Stop {
		if cmd.Group, err = onlyGroup(o.s.State.View(), k, cmd.Group); err != nil {
			return nil, err
		}
		e.Reason = fmt.Sprintf("scale %s to %d", cmd.Group, cmd.Count)
	}
	if err := o.commit(ctx, cmd, e); err != nil {
		return nil, err
	}
	view := o.s.State.View()
	if x, stored := view.Override(k.Namespace, k.Job); stored {
		return o.toProto(view, x), nil
	}
	return &nusav1.Override{Namespace: k.Namespace, Job: k.Job, Region: o.s.region()}, nil // the count has ended the override
}

// Clear implements nusav1.OverridesServer.
func (o overrides) Clear(ctx context.Context, req *nusav1.ClearOverrideRequest) (*nusav1.ClearOverrideResponse, error) {
	k, err := o.job(req.GetJob(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	if _, stored := o.s.State.View().Override(k.Namespace, k.Job); !stored {
		return &nusav1.ClearOverrideResponse{}, nil
	}
	e := audit.Entry{Verb: "override", Kind: rpcerr.KindJob, Namespace: k.Namespace, Name: k.Job, Region: o.s.region(), Reason: "clear"}
	if err := o.commit(ctx, &state.SetOverride{Namespace: k.Namespace, Job: k.Job, Clear: true}, e); err != nil {
		return nil, err
	}
	return &nusav1.ClearOverrideResponse{Cleared: true}, nil
}

// setter returns who sets an override. A global server that passes on a call names its caller.
func setter(ctx context.Context, req *nusav1.SetOverrideRequest) string {
	who := recorder.Of(ctx).Who
	if id, ok := trust.CallerOf(ctx); ok && id.Kind == identity.Global && req.GetCaller() != "" {
		who = req.GetCaller()
	}
	return strings.ToValidUTF8(who[:min(len(who), maxReason)], "")
}

// maxReason bounds the bytes of the reason of an override, and of who sets it.
const maxReason = 256

// job returns the job of the federation that a request names.
func (o overrides) job(ref *nusav1.JobRef, region string) (state.JobKey, error) {
	if err := (nodePools{s: o.s}).own(region); err != nil {
		return state.JobKey{}, err
	}
	k := state.JobKey{Namespace: cmp.Or(ref.GetNamespace(), job.DefaultNamespace), Job: ref.GetName()}
	if ref.GetRegion() != "" || strings.Contains(k.Job, "@") {
		return k, rpcerr.Invalid(&nusav1.Problem{Field: "job.region", Message: "must be empty: a region's own job needs no override, stop or scale it itself"})
	}
	return k, nil
}

// onlyGroup returns the name of a group of a job. An empty name stands for the only one.
func onlyGroup(view *state.View, k state.JobKey, name string) (string, error) {
	var all []string
	for g := range view.JobGroups(k) {
		if hasWork(g) {
			all = append(all, g.Key.Group)
		}
	}
	switch {
	case name != "" || len(all) == 1:
		return cmp.Or(name, strings.Join(all, "")), nil
	case len(all) == 0:
		return "", notFound(rpcerr.KindJob, k.Job, "region %s has no part of job %s", view.Cluster().Region, k)
	}
	return "", rpcerr.Invalid(&nusav1.Problem{Field: "group", Message: "must name one of the groups " + strings.Join(all, ", ")})
}

// commit stores a change of an override with its entry in the audit trail.
func (o overrides) commit(ctx context.Context, cmd *state.SetOverride, e audit.Entry) error {
	m, err := o.s.master()
	if err != nil {
		return err
	}
	if level := o.s.State.View().Cluster().FeatureLevel; level < state.OverrideLevel {
		return status.Errorf(codes.FailedPrecondition, "region %s has servers of an earlier version (feature level %d), so it cannot store overrides: upgrade all its servers", o.s.region(), level)
	}
	_, err = m.Log.Commit(ctx, o.s.audited(ctx, state.Command{SetOverride: cmd}, e))
	return raftlog.StatusError(err)
}
