package api

import (
	"context"
	"fmt"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// auditAPI shows the audit trail.
type auditAPI struct {
	nusav1.UnimplementedAuditServer
	s *Services
}

// record stores an entry of the audit trail, and returns once the entry is durable.
func (t *Term) record(ctx context.Context, e audit.Entry) error {
	_, err := t.Commit.Do(ctx, func(tx *state.Tx) error { return tx.Audit(e) })
	if err != nil {
		return rpcError(fmt.Errorf("this call needs an entry in the audit trail, which cannot be written: %w", err))
	}
	return nil
}

// entryOf returns the entry for a call that concerns an allocation.
func entryOf(verb, outcome string, f found) audit.Entry {
	a := f.alloc
	return audit.Entry{
		Verb: verb, Kind: "allocation", Namespace: a.GetNamespace(), Name: a.GetId(), Region: f.conn.name, Outcome: outcome,
		Reason: fmt.Sprintf("%s/%s/%d on %s", a.GetJob(), a.GetGroup(), a.GetIndex(), a.GetNodeName()),
	}
}

// onOff is the text of a switch in the audit trail.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// AuditOf returns the audit service of a region.
func (t *Term) AuditOf(name string) (nusav1.AuditClient, error) {
	conn, err := t.dial(name)
	if err != nil {
		return nil, err
	}
	return nusav1.NewAuditClient(conn), nil
}

// signed returns the checkpoint of a tree.
func (t *Term) signed(ctx context.Context, tree audit.Tree) (*nusav1.AuditCheckpoint, error) {
	t.State.Lock()
	federation := t.State.Sessions.Federation
	t.State.Unlock()
	keys, err := state.AuditSigner(ctx, t.Store, t.Commit, federation)
	if err != nil {
		return nil, rpcError(err)
	}
	signed, err := audit.Sign(keys.GetSigner(), tree)
	if err != nil {
		return nil, err
	}
	return &nusav1.AuditCheckpoint{Trail: audit.GlobalTrail(federation), Size: tree.Size, Signed: signed, Key: keys.GetVerifier()}, nil
}

func (t *Term) auditTree() audit.Tree {
	t.State.Lock()
	defer t.State.Unlock()
	return t.State.AuditTree
}

// Checkpoint implements nusav1.AuditServer.
func (a *auditAPI) Checkpoint(ctx context.Context, req *nusav1.AuditCheckpointRequest) (*nusav1.AuditCheckpoint, error) {
	term, err := a.s.term()
	if err != nil {
		return nil, err
	}
	if req.GetRegion() != "" && req.GetStored() {
		end, _, err := storedEnd(ctx, term.Store, req.GetRegion())
		return end, err
	}
	if req.GetRegion() != "" {
		client, err := term.AuditOf(req.GetRegion())
		if err != nil {
			return nil, err
		}
		return client.Checkpoint(ctx, &nusav1.AuditCheckpointRequest{})
	}
	return term.signed(ctx, term.auditTree())
}

// storedEnd returns the checkpoint of what the global tier has stored of a region's trail, and the
// cursor.
func storedEnd(ctx context.Context, s store.Store, region string) (*nusav1.AuditCheckpoint, *nusav1.AuditCursor, error) {
	kv, ok, _, err := s.Get(ctx, state.CursorKey(region))
	if err != nil {
		return nil, nil, rpcError(fmt.Errorf("read what is stored of the trail of region %s: %w", region, err))
	}
	if !ok {
		return nil, nil, rpcerr.NotFound(rpcerr.KindRegion, region, fmt.Sprintf("nothing is stored of an audit trail of region %q", region))
	}
	c := new(nusav1.AuditCursor)
	if err := state.Decode(kv, c); err != nil {
		return nil, nil, rpcError(err)
	}
	return &nusav1.AuditCheckpoint{Trail: c.GetTrail(), Size: c.GetTree().GetSize(), Signed: c.GetSigned(), Key: c.GetKey()}, c, nil
}

// unpack returns the entries of a stored record.
func unpack(kv store.KV) ([]*nusav1.AuditEntry, *nusav1.AuditRecord, error) {
	rec := new(nusav1.AuditRecord)
	if err := state.Decode(kv, rec); err != nil {
		return nil, nil, err
	}
	entries, _, err := auditwire.Unpack(rec)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", kv.Key, err)
	}
	return entries, rec, nil
}
