package enroll

import (
	"context"
	"encoding/hex"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// RemovedPrefix is what the keys of the records of removed members begin with.
const RemovedPrefix = "identity/removed/"

// RemovedKey is the key of the record about a removed member with a public key, a
// nusav1.RemovedMember.
func RemovedKey(key join.Hash) string { return RemovedPrefix + hex.EncodeToString(key[:]) }

// ReadRemoved reads the record of a removed member.
func ReadRemoved(value []byte) (*nusav1.RemovedMember, error) {
	out := &nusav1.RemovedMember{}
	return out, proto.Unmarshal(value, out)
}

// RefusesRemoved returns why the connections of a removed member are refused.
func RefusesRemoved(id identity.ID) error {
	return status.Errorf(codes.PermissionDenied, "%s was removed: join again with a new token", id.Describe())
}

// Remove frees the name of an agent of this region, and refuses the agent's key from then on. It
// returns false if nobody has the name.
func (s Members) Remove(ctx context.Context, name string) (bool, error) {
	if s.Server == nil || s.Source == nil {
		return false, nil // without identities nobody owns a name
	}
	store, err := s.Store()
	if err != nil {
		return false, err
	}
	id := identity.ID{Federation: s.Source.ID().Federation, Kind: identity.Agent, Region: s.Region, Name: name}
	out, err := s.remove(ctx, store, id, caller(ctx, ""))
	return out != nil, err
}

// ServerToRemove returns the record about the removal of a regional server, without removing the server.
// It returns NOT_FOUND if no server has joined under that name.
func (s Members) ServerToRemove(ctx context.Context, region, name string) (*nusav1.RemovedMember, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	id := identity.ID{Federation: s.Source.ID().Federation, Kind: identity.Server, Region: region, Name: name}
	if err := id.Check(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	out, _, err := s.removal(ctx, store, id)
	if err == nil && out == nil {
		err = status.Errorf(codes.NotFound, "no server %s of region %s has joined with a token: `nusa node members` shows who has", name, region)
	}
	return out, err
}

// RemoveServer frees the name of a regional server at the global tier.
func (s Members) RemoveServer(ctx context.Context, region, name string) error {
	store, err := s.records()
	if err != nil {
		return err
	}
	id := identity.ID{Federation: s.Source.ID().Federation, Kind: identity.Server, Region: region, Name: name}
	_, err = s.remove(ctx, store, id, caller(ctx, ""))
	return err
}

// RefuseServer refuses the key of a server of this region that the global tier removes.
func (s Members) RefuseServer(ctx context.Context, req *nusav1.RemoveServerRequest) error {
	store, err := s.records()
	if err != nil {
		return err
	}
	id := identity.ID{Federation: s.Source.ID().Federation, Kind: identity.Server, Region: req.GetRegion(), Name: req.GetName()}
	from, known := trust.CallerOf(ctx)
	switch {
	case !known || from.Kind != identity.Global || len(req.GetKey()) != len(join.Hash{}):
		return status.Error(codes.FailedPrecondition, "the global tier keeps the names of regional servers: ask a global server; `nusa region server ban` works here, too")
	case req.GetRegion() != s.Region:
		return status.Errorf(codes.InvalidArgument, "region %q: this is a server of region %s", req.GetRegion(), s.Region)
	}
	if err := id.Check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	record := &nusav1.RemovedMember{
		Role: roles[id.Kind], Region: id.Region, Name: id.Name, Key: req.GetKey(), At: timestamppb.New(s.Now()), Until: req.GetUntil(), By: caller(ctx, req.GetBy()),
	}
	return retry(func() error { return s.storeRemoval(ctx, store, id, record, nil) })
}

// remove stores that a member is removed. It returns nil if nobody has the name.
func (s Members) remove(ctx context.Context, store Store, id identity.ID, by string) (out *nusav1.RemovedMember, err error) {
	err = retry(func() error {
		var version uint64
		out, version, err = s.removal(ctx, store, id)
		if err != nil || out == nil {
			return err
		}
		out.By = by
		return s.storeRemoval(ctx, store, id, out, &Check{memberKey(roles[id.Kind], id.Region, id.Name), version})
	})
	if out != nil && err == nil {
		s.Log.Warn("a member is removed", "member", id.String(), "by", by)
	}
	return out, err
}

// removal returns the record about the removal of a member, and the version of the member's own
// record. It returns nil if nobody has the name.
func (s Members) removal(ctx context.Context, store Store, id identity.ID) (*nusav1.RemovedMember, uint64, error) {
	stored := &nusav1.Member{}
	version, err := read(ctx, store, memberKey(roles[id.Kind], id.Region, id.Name), stored)
	if err != nil || version == 0 {
		return nil, 0, err
	}
	_, grace, _, _, err := policy(ctx, store)
	if err != nil {
		return nil, 0, err
	}
	m := ownerOf(stored)
	return &nusav1.RemovedMember{
		Role: roles[id.Kind], Region: id.Region, Name: id.Name, Key: stored.GetKey(),
		At: timestamppb.New(s.Now()), Until: timestamppb.New(m.RefusedUntil(grace)),
	}, version, nil
}

// storeRemoval writes the record of a removed member in place of the member's own record. It counts
// the removal in the list of bans, which all servers of the tier watch.
func (s Members) storeRemoval(ctx context.Context, store Store, id identity.ID, record *nusav1.RemovedMember, own *Check) error {
	bans := &nusav1.BanList{}
	version, err := read(ctx, store, bansKey, bans)
	if err != nil {
		return err
	}
	bans.Removals++
	var key join.Hash
	copy(key[:], record.GetKey())
	entry := &audit.Entry{Verb: "remove", Kind: "member", Name: recorder.Name(id), Region: id.Region}
	c, err := changeOf([]Check{{bansKey, version}}, map[string]proto.Message{bansKey: bans, RemovedKey(key): record}, entry)
	if err != nil {
		return err
	}
	if own != nil {
		c.Checks, c.Deletes = append(c.Checks, *own), []string{own.Key}
	}
	return store.Change(ctx, c)
}

// removedAt returns when the member with a key was removed, or the zero time.
func removedAt(ctx context.Context, store Store, key join.Hash) (time.Time, error) {
	record := &nusav1.RemovedMember{}
	version, err := read(ctx, store, RemovedKey(key), record)
	if err != nil || version == 0 {
		return time.Time{}, err
	}
	return record.GetAt().AsTime(), nil
}

// sweepEvery is the least time between two looks for records that nobody needs any more.
const sweepEvery = time.Minute

// sweeps says when the next look is due.
type sweeps struct {
	mu   sync.Mutex
	next time.Time
}

// due reports whether a look is due, and claims the look.
func (w *sweeps) due(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := w.next.Sub(now)
	if wait > 0 && wait <= sweepEvery { // a longer wait means that the clock was set back
		return false
	}
	w.next = now.Add(sweepEvery)
	return true
}

// again makes the next look due at once.
func (w *sweeps) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = time.Time{}
}

// sweep adds to a change the removal of records that nobody needs any more: those of members that can
// no longer renew their certificates, and those of removed members whose time is over.
func (s *Server) sweep(ctx context.Context, store Store, grace time.Duration, c *Change) error {
	now := s.Now()
	if !s.sweeps.due(now) {
		return nil
	}
	written := map[string]bool{}
	for _, p := range c.Puts {
		written[p.Key] = true
	}
	n := 0
	drop := func(key string, version uint64, over bool) {
		if over && !written[key] && n < deletesAtOnce {
			n++
			c.Deletes, c.Checks = append(c.Deletes, key), append(c.Checks, Check{key, version})
		}
	}
	err := store.List(ctx, memberPrefix, func(key string, value []byte, version uint64) error {
		m := &nusav1.Member{}
		err := proto.Unmarshal(value, m)
		if err == nil {
			drop(key, version, ownerOf(m).Over(grace, now))
		}
		return err
	})
	if err != nil {
		return err
	}
	err = store.List(ctx, RemovedPrefix, func(key string, value []byte, version uint64) error {
		m, err := ReadRemoved(value)
		if err == nil {
			drop(key, version, now.After(m.GetUntil().AsTime()))
		}
		return err
	})
	if n == deletesAtOnce {
		s.sweeps.again()
	}
	return err
}

// ownerOf returns what join reads of the record of a member.
func ownerOf(m *nusav1.Member) *join.Member {
	out := &join.Member{NotAfter: m.GetNotAfter().AsTime()}
	copy(out.Key[:], m.GetKey())
	return out
}
