package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
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

// inRegion returns the audit service of a region.
func (t *Term) inRegion(name string) (nusav1.AuditClient, error) {
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
	if req.GetRegion() != "" {
		client, err := term.inRegion(req.GetRegion())
		if err != nil {
			return nil, err
		}
		return client.Checkpoint(ctx, &nusav1.AuditCheckpointRequest{})
	}
	return term.signed(ctx, term.auditTree())
}

// Export implements nusav1.AuditServer. It sends the entries up to the checkpoint.
func (a *auditAPI) Export(req *nusav1.ExportAuditRequest, stream grpc.ServerStreamingServer[nusav1.AuditChunk]) error {
	term, err := a.s.term()
	if err != nil {
		return err
	}
	if req.GetRegion() != "" {
		client, err := term.inRegion(req.GetRegion())
		if err != nil {
			return err
		}
		up, err := client.Export(stream.Context(), &nusav1.ExportAuditRequest{})
		if err != nil {
			return err
		}
		return relay(up, stream.Send)
	}
	if err := term.record(stream.Context(), audit.Entry{Verb: "export", Kind: "audit"}); err != nil {
		return err
	}
	tree := term.auditTree()
	end, err := term.signed(stream.Context(), tree)
	if err != nil {
		return err
	}
	begun := false
	begin := func(base *nusav1.AuditTree) error {
		if begun {
			return nil
		}
		begun = true
		return stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Head{Head: &nusav1.AuditHead{Trail: end.GetTrail(), Key: end.GetKey(), Base: base}}})
	}
	_, err = term.Store.List(stream.Context(), state.AuditPrefix, func(kv store.KV) error {
		entries, rec, err := unpack(kv)
		if err != nil || len(entries) == 0 || rec.GetBefore().GetSize() >= tree.Size {
			return err
		}
		if err := begin(rec.GetBefore()); err != nil {
			return err
		}
		part := &nusav1.AuditPart{Entries: entries, Before: rec.GetBefore()}
		return stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Part{Part: part}})
	})
	if err == nil {
		err = begin(auditwire.FromTree(tree))
	}
	if err != nil {
		return rpcError(err)
	}
	return stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Checkpoint{Checkpoint: end}})
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

// List implements nusav1.AuditServer.
func (a *auditAPI) List(ctx context.Context, req *nusav1.ListAuditRequest) (*nusav1.ListAuditResponse, error) {
	term, err := a.s.term()
	if err != nil {
		return nil, err
	}
	if region := req.GetRegion(); region != "" {
		client, err := term.inRegion(region)
		if err != nil {
			return nil, err
		}
		req.Region = ""
		return client.List(ctx, req)
	}
	f, err := auditwire.FilterOf(req)
	if err != nil {
		return nil, err
	}
	page, err := latest(ctx, term.Store, f, time.Now())
	return page, rpcError(err)
}

// auditWindow is the number of leading digits of a key's time. Keys with the same leading digits
// were written within 2.8 hours, and are read together.
const auditWindow, auditWindowTime = 7, 10_000 * time.Second

// latest returns the latest chosen entries, the latest first. The store lists in ascending order,
// so it is read window by window, back from the latest.
func latest(ctx context.Context, s store.Store, f auditwire.Filter, now time.Time) (*nusav1.ListAuditResponse, error) {
	end := now
	for _, bound := range []int64{f.Until, f.At} {
		if bound > 0 {
			end = time.Unix(0, min(bound, end.UnixNano()))
		}
	}
	end = end.Add(auditWindowTime) // the key of a record has a later time than its entries
	start := now.Add(-state.AuditAge - 48*time.Hour)
	if f.Since > start.UnixNano() {
		start = time.Unix(0, f.Since)
	}
	var out []*nusav1.AuditEntry
	for at := end; len(out) <= f.Limit; at = at.Add(-auditWindowTime) {
		prefix := state.AuditKey(at)[:len(state.AuditPrefix)+auditWindow]
		some, err := window(ctx, s, prefix, f, f.Limit+1-len(out))
		if err != nil {
			return nil, err
		}
		slices.Reverse(some)
		out = append(out, some...)
		if prefix <= state.AuditKey(start)[:len(prefix)] {
			break
		}
	}
	return f.Page(out), nil
}

// errUntil ends the list of a window.
var errUntil = errors.New("later")

// window returns the latest chosen entries under a prefix, the latest last.
func window(ctx context.Context, s store.Store, prefix string, f auditwire.Filter, most int) (out []*nusav1.AuditEntry, err error) {
	_, err = s.List(ctx, prefix, func(kv store.KV) error {
		entries, _, err := unpack(kv)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if f.Shows(e) {
				out = append(out, e)
			}
		}
		if len(out) > 2*most {
			out = append(out[:0], out[len(out)-most:]...)
		}
		if len(entries) > 0 && f.Before > 0 && entries[0].GetSeq() >= f.Before {
			return errUntil
		}
		return nil
	})
	if errors.Is(err, errUntil) {
		err = nil
	}
	return out[max(0, len(out)-most):], err
}
