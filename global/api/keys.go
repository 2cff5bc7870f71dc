package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rotation"
)

// keysAPI is the Keys service: the root of the federation, and rings of keys.
type keysAPI struct {
	nusav1.UnimplementedKeysServer
	s *Services
}

// root returns the present root.
func (k *keysAPI) root(ctx context.Context) (*enroll.Root, enroll.Store, error) {
	if k.s.Enroll.Source == nil {
		return nil, nil, status.Error(codes.FailedPrecondition, "this federation has no identities, so it has no root")
	}
	store, err := k.s.Enroll.Store()
	if err != nil {
		return nil, nil, err
	}
	given, err := k.s.GivenRoots()
	if err != nil {
		return nil, nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	root, err := enroll.ReadRoot(ctx, store, given)
	if err == nil && root == nil {
		err = status.Error(codes.FailedPrecondition, "the identities of this federation were made by `nusa ca issue`: change roots.pem and the certificates of all members by hand, or start the global servers with --secure")
	}
	return root, store, err
}

// GetAuthority implements nusav1.KeysServer.
func (k *keysAPI) GetAuthority(ctx context.Context, _ *nusav1.GetAuthorityRequest) (*nusav1.AuthorityStatus, error) {
	term, err := k.s.term()
	if err != nil {
		return nil, err
	}
	root, store, err := k.root(ctx)
	if err != nil {
		return nil, err
	}
	out := root.Status()
	if root.State.Version == 0 {
		return out, nil // no member was ever asked what it has
	}
	goal := root.State.Goal()
	found, errs, err := k.lags(ctx, term, store, &goal)
	if err != nil {
		return nil, err
	}
	out.Converged, out.Waiting, out.Lags, out.Errors = int32(found.Converged), int32(found.Waiting), found.Lags, errs
	return out, nil
}

// RotateAuthority implements nusav1.KeysServer.
func (k *keysAPI) RotateAuthority(ctx context.Context, req *nusav1.RotateAuthorityRequest) (*nusav1.AuthorityStatus, error) {
	term, err := k.s.term()
	if err != nil {
		return nil, err
	}
	root, store, err := k.root(ctx)
	if err != nil {
		return nil, err
	}
	waiting := &rotation.Waiting{}
	if needs := root.State.Needs(req.GetPhase()); !needs.Empty() && !req.GetForce() {
		found, errs, err := k.lags(ctx, term, store, &needs)
		if err != nil {
			return nil, err
		}
		waiting = found.Hold(errs)
	}
	given, err := k.s.GivenRoots()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := root.Rotate(ctx, store, req, given, waiting, k.s.Enroll.Now()); err != nil {
		return nil, err
	}
	term.Log.Warn("the root of the federation changes", "phase", req.GetPhase(), "force", req.GetForce())
	after, _, err := k.root(ctx)
	if err != nil {
		return nil, err
	}
	return after.Status(), nil
}

// lags returns the members of the whole federation that do not have what they should. The errors
// are of regions that did not answer.
func (k *keysAPI) lags(ctx context.Context, term *Term, store enroll.Store, want *rotation.State) (*enroll.Lags, []*nusav1.PartialError, error) {
	out, err := k.globalLags(ctx, store, want)
	if err != nil {
		return nil, nil, err
	}
	servers, err := enroll.Lagging(ctx, k.s.Enroll, identity.Server, "", want, k.regionalServers(term))
	if err != nil {
		return nil, nil, err
	}
	out.Merge(servers)
	conns, errs := term.reach(nil)
	parts, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (*nusav1.AuthorityStatus, error) {
		out, err := nusav1.NewKeysClient(c.conn).GetAuthority(ctx, &nusav1.GetAuthorityRequest{Want: enroll.StateToProto(want)})
		if status.Code(err) == codes.Unimplemented {
			return nil, status.Error(codes.FailedPrecondition, "the region has servers of an earlier version: upgrade them")
		}
		return out, err
	})
	for _, part := range parts {
		out.Merge(&enroll.Lags{Converged: int(part.GetConverged()), Waiting: int(part.GetWaiting()), Lags: part.GetLags()})
	}
	return out, append(errs, failed...), nil
}

// globalLags returns the global servers that do not have what they should.
func (k *keysAPI) globalLags(ctx context.Context, store enroll.Store, want *rotation.State) (*enroll.Lags, error) {
	servers, err := k.s.Servers(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	out := &enroll.Lags{}
	for _, s := range servers {
		held := &nusav1.KeyHolderRecord{}
		value, _, err := store.Get(ctx, enroll.HolderPrefix+s.GetName())
		if err == nil {
			err = proto.Unmarshal(value, held)
		}
		if err != nil {
			return nil, err
		}
		name := identity.ID{Kind: identity.Global, Name: s.GetName()}.Describe()
		out.Add(&nusav1.KeyLag{Member: name, Lacks: rotation.Lacks(want, enroll.StateOf(held.GetHas()), held.GetHas() != nil), ReportedAt: held.GetAt()})
		if lacks, note := rotation.EtcdLacks(want.Roots, held.GetHas().GetEtcdRoots()); lacks != "" {
			out.Add(&nusav1.KeyLag{Member: name, Note: note, Lacks: lacks})
		}
	}
	return out, nil
}

// regionalServers returns the servers of all regions that are connected.
func (k *keysAPI) regionalServers(term *Term) map[identity.ID]bool {
	out, federation := map[identity.ID]bool{}, k.s.Enroll.Source.ID().Federation
	term.State.Lock()
	defer term.State.Unlock()
	for name, r := range term.State.Regions {
		if r.Session == nil {
			continue
		}
		for _, s := range r.Servers {
			out[identity.ID{Federation: federation, Kind: identity.Server, Region: name, Name: s.GetId()}] = true
		}
	}
	return out
}

// ring returns a ring with who has not converged.
func (k *keysAPI) ring(ctx context.Context, name, region string) (*enroll.Ring, enroll.Store, *enroll.Lags, error) {
	if k.s.Enroll.Source == nil {
		return nil, nil, nil, status.Error(codes.FailedPrecondition, "this federation has no identities, so it keeps no keys")
	}
	store, err := k.s.Enroll.Store()
	if err != nil {
		return nil, nil, nil, err
	}
	ring, err := enroll.ReadRing(ctx, store, name, region)
	if err != nil {
		return nil, nil, nil, err
	}
	want, lags := ring.Want(), &enroll.Lags{}
	if !want.Empty() {
		lags, err = enroll.Lagging(ctx, k.s.Enroll, identity.Server, region, &want, nil)
	}
	return ring, store, lags, err
}

// GetRing implements nusav1.KeysServer.
func (k *keysAPI) GetRing(ctx context.Context, req *nusav1.GetRingRequest) (*nusav1.RingStatus, error) {
	ring, _, lags, err := k.ring(ctx, req.GetRing(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	out := ring.Status()
	out.Converged, out.Waiting, out.Lags = int32(lags.Converged), int32(lags.Waiting), lags.Lags
	return out, nil
}

// ChangeRing implements nusav1.KeysServer.
func (k *keysAPI) ChangeRing(ctx context.Context, req *nusav1.ChangeRingRequest) (*nusav1.RingStatus, error) {
	term, err := k.s.term()
	if err != nil {
		return nil, err
	}
	ring, store, lags, err := k.ring(ctx, req.GetRing(), req.GetRegion())
	if err != nil {
		return nil, err
	}
	if err := ring.Change(ctx, store, req, lags.Hold(nil), k.s.Enroll.Now()); err != nil {
		return nil, err
	}
	term.Log.Warn("a ring of keys changes", "ring", req.GetRing(), "region", req.GetRegion(), "step", req.GetStep(), "force", req.GetForce())
	return k.GetRing(ctx, &nusav1.GetRingRequest{Ring: req.GetRing(), Region: req.GetRegion()})
}
