package enroll

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rotation"
)

// The rings of keys. RingPrefix is what the keys of their records begin with.
const (
	GossipRing, ProbeRing = "gossip", "probe"
	RingPrefix            = "identity/ring/"
	// HolderPrefix is what the keys of the records begin with that say what global servers have.
	HolderPrefix = "identity/holder/"
)

// keyBytes is the length of new keys. leastProbe is the least length of a key of probes.
const keyBytes, leastProbe, mostProbe = 32, 16, 128

// noKey is the name of the key of packets without a key.
const noKey = "none"

// RingKey returns the key of the record of a ring. region is empty for probes.
func RingKey(ring, region string) string {
	if ring == ProbeRing {
		return RingPrefix + ProbeRing
	}
	return RingPrefix + GossipRing + "/" + region
}

// KeyID names a key of a ring. It says nothing about the key.
func KeyID(key []byte) string {
	if len(key) == 0 {
		return noKey
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:4])
}

// KeyIDs names the keys of a ring.
func KeyIDs(keys [][]byte) []string {
	var out []string
	for _, k := range keys {
		out = append(out, KeyID(k))
	}
	return out
}

// newKey returns a new key of a ring.
func newKey() []byte {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // it never fails
	return key
}

// ringsOf adds the rings of a regional server to the answer.
func ringsOf(ctx context.Context, store Store, id identity.ID, to *nusav1.JoinResponse) error {
	if id.Kind != identity.Server {
		return nil
	}
	for _, r := range []struct {
		key string
		to  *[][]byte
	}{{RingKey(GossipRing, id.Region), &to.GossipKeys}, {RingKey(ProbeRing, ""), &to.ProbeKeys}} {
		ring := &nusav1.KeyRingRecord{}
		if _, err := read(ctx, store, r.key, ring); err != nil {
			return err
		}
		*r.to = ring.GetKeys()
	}
	return nil
}

// firstRing returns the check and the record of a ring of gossip for a region whose first server
// joins. Both are zero if the region has a ring, or servers that do not know of one.
func firstRing(ctx context.Context, store Store, id identity.ID, takes bool, now time.Time) (Check, *nusav1.KeyRingRecord, error) {
	key := RingKey(GossipRing, id.Region)
	if !takes || id.Kind != identity.Server {
		return Check{}, nil, nil
	}
	ring := &nusav1.KeyRingRecord{}
	version, err := read(ctx, store, key, ring)
	if err != nil || version > 0 {
		return Check{}, nil, err
	}
	others := false
	err = store.List(ctx, memberKey(roles[identity.Server], id.Region, ""), func(string, []byte, uint64) error { others = true; return nil })
	if err != nil || others {
		return Check{}, nil, err
	}
	return Check{Key: key}, &nusav1.KeyRingRecord{Version: 1, Keys: [][]byte{newKey()}, Since: timestamppb.New(now), Spread: durationpb.New(ringSpread)}, nil
}

// Ring is a ring of the store.
type Ring struct {
	Name, Region string
	record       *nusav1.KeyRingRecord
	version      uint64
}

// ReadRing reads a ring. A ring that does not exist has no keys.
func ReadRing(ctx context.Context, store Store, name, region string) (*Ring, error) {
	if name != ProbeRing && name != GossipRing || (name == ProbeRing) != (region == "") {
		return nil, status.Errorf(codes.InvalidArgument, "ring %q of region %q: give gossip with a region, or probe without one", name, region)
	}
	out := &Ring{Name: name, Region: region, record: &nusav1.KeyRingRecord{}}
	var err error
	out.version, err = read(ctx, store, RingKey(name, region), out.record)
	return out, err
}

// Want returns what servers with this ring have.
func (r *Ring) Want() rotation.State {
	if r.Name == ProbeRing {
		return rotation.State{Probe: KeyIDs(r.record.GetKeys())}
	}
	return rotation.State{Gossip: KeyIDs(r.record.GetKeys())}
}

// Status describes the ring, without who has converged.
func (r *Ring) Status() *nusav1.RingStatus {
	return &nusav1.RingStatus{Ring: r.Name, Region: r.Region, Version: r.record.GetVersion(), Keys: KeyIDs(r.record.GetKeys()), Since: r.record.GetSince()}
}

// given returns the key of a request to install one.
func (r *Ring) given(req *nusav1.ChangeRingRequest) ([]byte, error) {
	key, n := req.GetKey(), len(req.GetKey())
	switch {
	case req.GetStep() != rotation.Install && n > 0:
		return nil, errors.New("only the step install takes a key")
	case req.GetStep() != rotation.Install:
		return nil, nil
	case n == 0:
		return newKey(), nil
	case r.Name == GossipRing && n != 16 && n != 24 && n != 32:
		return nil, fmt.Errorf("the key has %d bytes, must have 16, 24 or 32", n)
	case r.Name == ProbeRing && (n < leastProbe || n > mostProbe):
		return nil, fmt.Errorf("the key has %d bytes, must have %d to %d", n, leastProbe, mostProbe)
	}
	return key, nil
}

// Change does a step with the ring, and stores it.
func (r *Ring) Change(ctx context.Context, store Store, req *nusav1.ChangeRingRequest, waiting *rotation.Waiting, now time.Time) error {
	key, err := r.given(req)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	spread := ringSpread
	if req.GetSpread() != nil {
		spread = req.GetSpread().AsDuration()
	}
	if spread < 0 || spread > maxSpread {
		return status.Errorf(codes.InvalidArgument, "spread: %s is not 0..%s", spread, maxSpread)
	}
	keys := r.record.GetKeys()
	switch {
	case len(keys) > 0:
	case r.Name == GossipRing:
		return status.Errorf(codes.FailedPrecondition, "region %s keeps no keys of gossip here: its first server joined by an earlier version, or without a token, so use --gossip-key-file", r.Region)
	default:
		keys = [][]byte{nil} // until the first key is in use, packets have none
	}
	byID := map[string][]byte{}
	for _, k := range keys {
		byID[KeyID(k)] = k
	}
	id := req.GetId()
	if key != nil {
		id = KeyID(key)
	}
	ring := rotation.Ring{Version: r.record.GetVersion(), Keys: KeyIDs(keys)}
	next, changed, err := ring.Step(req.GetStep(), id, waiting, req.GetForce())
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	byID[KeyID(key)] = key
	record := &nusav1.KeyRingRecord{Version: next.Version, Since: timestamppb.New(now), Spread: durationpb.New(spread)}
	for _, id := range next.Keys {
		record.Keys = append(record.Keys, slices.Clone(byID[id]))
	}
	return r.store(ctx, store, record, fmt.Sprintf("%s %s", req.GetStep(), changed))
}

func (r *Ring) store(ctx context.Context, store Store, record proto.Message, why string) error {
	key := RingKey(r.Name, r.Region)
	p, err := put(key, record)
	if err != nil {
		return err
	}
	entry := &audit.Entry{Verb: "rotate", Kind: "key", Name: r.Name, Region: r.Region, Reason: why}
	err = store.Change(ctx, Change{Checks: []Check{{key, r.version}}, Puts: []Put{p}, Audit: entry})
	if errors.Is(err, ErrChanged) {
		return status.Error(codes.Aborted, "another call has changed the ring: look at the status")
	}
	return err
}
