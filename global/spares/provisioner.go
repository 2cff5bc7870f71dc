package spares

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/objects"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// kindProvisioner is the kind of provisioners in errors.
const kindProvisioner = "provisioner"

func wordOf(text, prefix string) string { return strings.ToLower(strings.TrimPrefix(text, prefix)) }

// SetProvisioner implements nusav1.SparesServer.
func (s *Service) SetProvisioner(ctx context.Context, req *nusav1.SetProvisionerRequest) (*nusav1.Provisioner, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	var rec *nusav1.ProvisionerRecord
	_, err = b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
		name := req.GetProvisioner().GetName()
		old, _ := b.provisioners.Of(t, name)
		if err := state.CheckRevision("provisioner "+name, req.GetRevision(), old != nil, old.GetProvisioner().GetRevision()); err != nil {
			return err
		}
		next, err := checkProvisioner(req, old, b.cfg.Policy)
		if err != nil {
			return err
		}
		if old == nil {
			if err := b.provisioners.Room(t, provisionersMost, "provisioners"); err != nil {
				return status.Error(codes.ResourceExhausted, err.Error())
			}
		}
		next.Provisioner.Revision = objects.NextRevision(t, old.GetProvisioner().GetRevision())
		rec = next
		// The hash does not cover the secret, because the trail is shown to others.
		e := audit.Entry{Verb: "set", Kind: kindProvisioner, Name: name, After: state.AuditHash(next.GetProvisioner())}
		if old != nil {
			e.Before = state.AuditHash(old.GetProvisioner())
		}
		return errors.Join(t.Audit(e), b.provisioners.Put(t, name, next))
	})
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	return proto.CloneOf(rec.GetProvisioner()), nil
}

// ListProvisioners implements nusav1.SparesServer.
func (s *Service) ListProvisioners(ctx context.Context, _ *nusav1.ListProvisionersRequest) (*nusav1.ListProvisionersResponse, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	all, out := b.provisioners.All(), &nusav1.ListProvisionersResponse{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out.Provisioners = append(out.Provisioners, proto.CloneOf(all[name].GetProvisioner()))
	}
	return out, nil
}

// RemoveProvisioner implements nusav1.SparesServer.
func (s *Service) RemoveProvisioner(ctx context.Context, req *nusav1.RemoveProvisionerRequest) (*nusav1.RemoveProvisionerResponse, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	_, err = b.cfg.Term.Commit.Do(ctx, func(t *state.Tx) error {
		old, ok := b.provisioners.Of(t, name)
		if !ok {
			return rpcerr.NotFound(kindProvisioner, name, fmt.Sprintf("there is no provisioner %q: see nusa spare provisioner list", name))
		}
		for id, rec := range b.opened(t) {
			if rec.GetSpare().GetRequest().GetProvisioner() == name {
				return status.Errorf(codes.FailedPrecondition, "spare %s uses provisioner %s: cancel it, or wait for its end", id, name)
			}
		}
		e := audit.Entry{Verb: "remove", Kind: kindProvisioner, Name: name, Before: state.AuditHash(old.GetProvisioner())}
		return errors.Join(t.Audit(e), b.provisioners.Delete(t, name))
	})
	if err != nil {
		return nil, state.RPCErrors.Err(err)
	}
	return &nusav1.RemoveProvisionerResponse{}, nil
}
