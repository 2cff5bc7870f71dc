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
		old := b.presentProvisioner(t, name)
		if err := state.CheckRevision("provisioner "+name, req.GetRevision(), old != nil, old.GetProvisioner().GetRevision()); err != nil {
			return err
		}
		next, err := checkProvisioner(req, old, b.cfg.Policy)
		if err != nil {
			return err
		}
		if old == nil && len(b.provisioners) >= provisionersMost {
			return status.Errorf(codes.ResourceExhausted, "there are %d provisioners, the most that are allowed: remove one", provisionersMost)
		}
		rec = next
		// The hash does not cover the secret, because the trail is shown to others.
		e := audit.Entry{Verb: "set", Kind: kindProvisioner, Name: name, After: state.AuditHash(next.GetProvisioner())}
		if old != nil {
			e.Before = state.AuditHash(old.GetProvisioner())
		}
		return errors.Join(t.Audit(e), state.PutOther(t, provisionerKey(name), next))
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return proto.CloneOf(rec.GetProvisioner()), nil
}

// ListProvisioners implements nusav1.SparesServer.
func (s *Service) ListProvisioners(ctx context.Context, _ *nusav1.ListProvisionersRequest) (*nusav1.ListProvisionersResponse, error) {
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	b.st.Lock()
	defer b.st.Unlock()
	out := &nusav1.ListProvisionersResponse{}
	for _, name := range slices.Sorted(maps.Keys(b.provisioners)) {
		out.Provisioners = append(out.Provisioners, proto.CloneOf(b.provisioners[name].GetProvisioner()))
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
		old := b.presentProvisioner(t, name)
		if old == nil {
			return rpcerr.NotFound(kindProvisioner, name, fmt.Sprintf("there is no provisioner %q: see nusa spare provisioner list", name))
		}
		for id, e := range b.open {
			if e.rec.GetSpare().GetRequest().GetProvisioner() == name {
				return status.Errorf(codes.FailedPrecondition, "spare %s uses provisioner %s: cancel it, or wait for its end", id, name)
			}
		}
		e := audit.Entry{Verb: "remove", Kind: kindProvisioner, Name: name, Before: state.AuditHash(old.GetProvisioner())}
		return errors.Join(t.Audit(e), state.DeleteOther(t, provisionerKey(name)))
	})
	if err != nil {
		return nil, rpcError(err)
	}
	return &nusav1.RemoveProvisionerResponse{}, nil
}
