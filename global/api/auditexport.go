package api

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// exportAtOnce is how many bytes of records are read before they are sent. While a list of the store
// runs, the store keeps all history. So nothing is sent to a client meanwhile.
const exportAtOnce = 1 << 20

// errEnough ends a list of the store.
var errEnough = errors.New("enough")

// Export implements nusav1.AuditServer. It sends the entries up to the checkpoint.
func (a *auditAPI) Export(req *nusav1.ExportAuditRequest, stream grpc.ServerStreamingServer[nusav1.AuditChunk]) error {
	term, err := a.s.term()
	if err != nil {
		return err
	}
	ctx := stream.Context()
	if region := req.GetRegion(); region != "" && req.GetStored() {
		if err := term.record(ctx, audit.Entry{Verb: "export", Kind: "audit", Name: region, Region: region}); err != nil {
			return err
		}
		end, c, err := storedEnd(ctx, term.Store, region)
		if err != nil {
			return err
		}
		tree, err := auditwire.Tree(c.GetTree())
		if err != nil {
			return rpcError(err)
		}
		of := func(rec *nusav1.AuditRecord) bool {
			return rec.GetRegion() == region && rec.GetBranch() == c.GetBranch()
		}
		x := exportOf{end: end, send: stream.Send, gaps: true}
		return x.run(ctx, term.Store, [2]string{state.ForwardedPrefix, state.ForwardedEnd}, tree, of)
	}
	if req.GetRegion() != "" {
		client, err := term.AuditOf(req.GetRegion())
		if err != nil {
			return err
		}
		up, err := client.Export(ctx, &nusav1.ExportAuditRequest{})
		if err != nil {
			return err
		}
		return relay(up, stream.Send)
	}
	if err := term.record(ctx, audit.Entry{Verb: "export", Kind: "audit"}); err != nil {
		return err
	}
	tree := term.auditTree()
	end, err := term.signed(ctx, tree)
	if err != nil {
		return err
	}
	x := exportOf{end: end, send: stream.Send}
	return x.run(ctx, term.Store, [2]string{state.AuditPrefix, state.AuditEnd}, tree, func(*nusav1.AuditRecord) bool { return true })
}

// exportOf is an export that is being sent.
type exportOf struct {
	end  *nusav1.AuditCheckpoint
	send func(*nusav1.AuditChunk) error
	// gaps: entries may be missing. The checkpoint shows that to who verifies the file.
	gaps  bool
	begun bool
	size  int64 // number of the last entry that was sent
}

// run sends the stored records of a trail in a range of keys, up to the entry with the number of the
// tree's size. of chooses the records of the trail.
func (x *exportOf) run(ctx context.Context, s store.Store, keys [2]string, tree audit.Tree, of func(*nusav1.AuditRecord) bool) error {
	for from := keys[0]; from != ""; {
		records, next, err := someRecords(ctx, s, from, keys[1], exportAtOnce)
		if err != nil {
			return rpcError(err)
		}
		from = next
		for _, kv := range records {
			entries, rec, err := unpack(kv)
			if err != nil {
				return rpcError(err)
			}
			if len(entries) == 0 || !of(rec) { // a record of an earlier version, or of another trail
				continue
			}
			if rec.GetBefore().GetSize() >= tree.Size {
				from = ""
				break
			}
			if err := x.part(&nusav1.AuditPart{Entries: entries, Before: rec.GetBefore()}); err != nil {
				return err
			}
		}
	}
	if err := x.begin(auditwire.FromTree(tree)); err != nil {
		return err
	}
	return x.send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Checkpoint{Checkpoint: x.end}})
}

// begin sends the head of the export, once.
func (x *exportOf) begin(base *nusav1.AuditTree) error {
	if x.begun {
		return nil
	}
	x.begun, x.size = true, base.GetSize()
	return x.send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Head{Head: &nusav1.AuditHead{Trail: x.end.GetTrail(), Key: x.end.GetKey(), Base: base}}})
}

// part sends entries. It fails if they do not follow those that were sent: the store is read in
// several steps, and records may be removed between them.
func (x *exportOf) part(p *nusav1.AuditPart) error {
	if err := x.begin(p.GetBefore()); err != nil {
		return err
	}
	if !x.gaps && p.GetBefore().GetSize() != x.size {
		return status.Errorf(codes.Aborted, "the entries %d to %d of the audit trail were removed during the export, because the trail is full: export again", x.size+1, p.GetBefore().GetSize())
	}
	x.size = p.GetBefore().GetSize() + int64(len(p.GetEntries()))
	return x.send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Part{Part: p}})
}

// someRecords returns records from a key on and before end, of about this many bytes. next is the key
// from which the rest begins. It is empty if there is no rest.
func someRecords(ctx context.Context, s store.Store, from, end string, most int) (records []store.KV, next string, err error) {
	size := 0
	_, err = s.Range(ctx, from, end, func(kv store.KV) error {
		if size >= most {
			next = kv.Key
			return errEnough
		}
		records, size = append(records, kv), size+len(kv.Key)+len(kv.Value)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the audit trail: %w", err)
	}
	return records, next, nil
}
