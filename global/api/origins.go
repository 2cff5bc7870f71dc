package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// originsAPI is the public Origins service.
type originsAPI struct {
	nusav1.UnimplementedOriginsServer
	s *Services
}

// Set implements nusav1.OriginsServer.
func (o *originsAPI) Set(ctx context.Context, req *nusav1.SetOriginsRequest) (*nusav1.OriginRecord, error) {
	term, err := o.s.term()
	if err != nil {
		return nil, err
	}
	changed, revision := false, int64(0)
	var next *nusav1.OriginRecord
	written, err := term.Commit.Do(ctx, func(t *state.Tx) error {
		known := func(name string) (bool, []string) {
			if r, _ := t.Region(name); r != nil {
				return true, nil
			}
			return false, t.State.RegionNames()
		}
		var err error
		next, err = origins.CanonicalRecord(req.GetRecord(), known)
		if err != nil {
			return err
		}
		domain := next.GetDomain()
		old, rev := t.Origin(domain)
		if err := state.CheckRevision("origin record "+domain, req.GetRevision(), old != nil, rev); err != nil {
			return err
		}
		changed, revision = !proto.Equal(old, next), rev
		if !changed {
			return nil
		}
		e := audit.Entry{Verb: "set", Kind: "origin", Name: domain, Before: state.AuditHash(old), After: state.AuditHash(next)}
		if err := t.Audit(e); err != nil {
			return err
		}
		t.Event("origins.set", domain, "by an operator, %s", topo.ListNames(regionsOf(next)))
		return t.PutOrigin(next)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	if changed || revision == 0 { // if revision is 0, another request of the transaction set the same record
		revision = written
	}
	next = proto.CloneOf(next)
	next.Revision = revision
	return next, nil
}

func regionsOf(rec *nusav1.OriginRecord) []string {
	var out []string
	for _, o := range rec.GetOrigins() {
		out = append(out, o.GetRegion())
	}
	return out
}

// List implements nusav1.OriginsServer.
func (o *originsAPI) List(context.Context, *nusav1.ListOriginsRequest) (*nusav1.ListOriginsResponse, error) {
	term, err := o.s.term()
	if err != nil {
		return nil, err
	}
	term.State.Lock()
	defer term.State.Unlock()
	return &nusav1.ListOriginsResponse{Records: term.State.Origins.Table.Records(), Age: durationpb.New(0)}, nil
}

// Remove implements nusav1.OriginsServer.
func (o *originsAPI) Remove(ctx context.Context, req *nusav1.RemoveOriginsRequest) (*nusav1.RemoveOriginsResponse, error) {
	term, err := o.s.term()
	if err != nil {
		return nil, err
	}
	domain, err := origin.ParsePattern(req.GetDomain())
	if err != nil {
		return nil, invalid("domain", err.Error())
	}
	_, err = term.Commit.Do(ctx, func(t *state.Tx) error {
		old, revision := t.Origin(domain)
		if old == nil {
			return status.Errorf(codes.NotFound, "there is no origin record %q", domain)
		}
		if err := state.CheckRevision("origin record "+domain, req.GetRevision(), true, revision); err != nil {
			return err
		}
		if err := t.Audit(audit.Entry{Verb: "remove", Kind: "origin", Name: domain, Before: state.AuditHash(old)}); err != nil {
			return err
		}
		t.Event("origins.removed", domain, "by an operator")
		return t.DeleteOrigin(domain)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return &nusav1.RemoveOriginsResponse{}, nil
}

// Resolve implements nusav1.OriginsServer.
func (o *originsAPI) Resolve(_ context.Context, req *nusav1.ResolveOriginRequest) (*nusav1.ResolveOriginResponse, error) {
	term, err := o.s.term()
	if err != nil {
		return nil, err
	}
	st := term.State
	st.Lock()
	if name := req.GetRegion(); name != "" && st.Regions[name] == nil {
		defer st.Unlock()
		return nil, unknownRegion(st, "region", name)
	}
	table, view := st.Origins.Table, st.TopologyCache()
	age := st.Clock() - view.At
	st.Unlock()
	out, err := table.Resolve(req, view.Routers.At)
	if err != nil {
		return nil, err
	}
	out.Age = durationpb.New(age)
	return out, nil
}
