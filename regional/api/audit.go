package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/auditwire"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
)

// audits is the Audit service. It shows the trail in the region's log.
type audits struct {
	nusav1.UnimplementedAuditServer
	s *Server
}

// audited adds the entry of a call to a command. It adds none while a server of the region cannot
// read it.
func (s *Server) audited(ctx context.Context, cmd state.Command, e audit.Entry) state.Command {
	if s.State.View().Cluster().FeatureLevel < state.AuditLevel {
		return cmd
	}
	if e.Outcome == "" {
		e.Outcome = audit.Done
	}
	cmd.Audit = state.AuditOf(e.By(recorder.Of(ctx)).Bounded())
	s.Trail.Complete(s.State.View(), cmd.Audit)
	return cmd
}

// record stores an entry of the audit trail, and returns once the entry is durable.
func (s *Server) record(ctx context.Context, m *Master, e audit.Entry) error {
	cmd := s.audited(ctx, state.Command{}, e)
	if cmd.Audit == nil {
		return nil
	}
	if _, err := m.Log.Commit(ctx, cmd); err != nil {
		return raftlog.StatusError(fmt.Errorf("this call needs an entry in the audit trail, which cannot be written: %w", err))
	}
	return nil
}

// Commit commits a command with its entry in the audit trail. The error is a gRPC status.
func (s *Server) Commit(ctx context.Context, cmd state.Command, e audit.Entry) (state.Result, error) {
	m, err := s.master()
	if err != nil {
		return state.Result{}, err
	}
	r, err := m.Log.Commit(ctx, s.audited(ctx, cmd, e))
	return r, raftlog.StatusError(err)
}

// entryOf returns the entry for a call that concerns an allocation.
func entryOf(verb, outcome string, x *state.Alloc) audit.Entry {
	return audit.Entry{
		Verb: verb, Kind: "allocation", Namespace: x.Namespace, Name: x.ID, Outcome: outcome,
		Reason: fmt.Sprintf("%s/%s/%d on %s", x.Job, x.Group, x.Index, x.NodeName),
	}
}

// auditKey is the document with the keys of the trail's checkpoints: the secret one, and the public
// one on the next line.
const auditKey = "audit/key"

// keys returns the keys of the checkpoints. The first call stores new ones.
func (a audits) keys(ctx context.Context, m *Master) (signer, verifier string, err error) {
	for range 2 {
		if d, ok := a.s.State.View().Document(auditKey); ok {
			signer, verifier, _ = strings.Cut(string(d.Value), "\n")
			return signer, verifier, nil
		}
		signer, verifier, err = audit.GenerateKey(rand.Reader, audit.RegionTrail(m.Cluster.Region, m.Cluster.ID))
		if err != nil {
			return "", "", err
		}
		_, err = m.Log.Commit(ctx, state.Command{ChangeDocuments: &state.ChangeDocuments{
			Checks: []state.DocumentCheck{{Key: auditKey}},
			Puts:   []state.Document{{Key: auditKey, Value: []byte(signer + "\n" + verifier)}},
		}})
		if err == nil {
			return signer, verifier, nil
		}
		if !errors.Is(err, state.ErrStaleRevision) { // another call has stored keys meanwhile
			break
		}
	}
	return "", "", raftlog.StatusError(err)
}

func (a audits) signed(ctx context.Context, m *Master, tree audit.Tree) (*nusav1.AuditCheckpoint, error) {
	if a.s.State.View().Cluster().FeatureLevel < state.AuditLevel {
		return nil, status.Error(codes.FailedPrecondition, "the region has no audit trail before all its servers run a version that has one")
	}
	signer, verifier, err := a.keys(ctx, m)
	if err != nil {
		return nil, err
	}
	signed, err := audit.Sign(signer, tree)
	if err != nil {
		return nil, err
	}
	return &nusav1.AuditCheckpoint{Trail: audit.RegionTrail(m.Cluster.Region, m.Cluster.ID), Size: tree.Size, Signed: signed, Key: verifier}, nil
}

// own refuses the name of another region.
func (a audits) own(region string) error {
	if own := a.s.region(); region != "" && region != own {
		return notFound(rpcerr.KindRegion, region, "this is region %q, not %q", own, region)
	}
	return nil
}

// Checkpoint returns the signed checkpoint of the region's trail.
func (a audits) Checkpoint(ctx context.Context, req *nusav1.AuditCheckpointRequest) (*nusav1.AuditCheckpoint, error) {
	m, err := a.s.master()
	if err == nil {
		err = a.own(req.GetRegion())
	}
	if err != nil {
		return nil, err
	}
	return a.signed(ctx, m, a.s.State.View().Audit().Tree())
}

// List returns a page of the region's trail.
func (a audits) List(_ context.Context, req *nusav1.ListAuditRequest) (*nusav1.ListAuditResponse, error) {
	_, err := a.s.master()
	if err == nil {
		err = a.own(req.GetRegion())
	}
	if err != nil {
		return nil, err
	}
	f, err := auditwire.FilterOf(req)
	if err != nil {
		return nil, err
	}
	var out []*nusav1.AuditEntry
	for x := range a.s.State.View().Audit().Latest() {
		if e := a.entry(x); f.Shows(e) {
			out = append(out, e)
			if len(out) > f.Limit {
				break
			}
		}
	}
	return f.Page(out), nil
}

// entry converts an entry with its hash.
func (a audits) entry(x *state.AuditEntry) *nusav1.AuditEntry {
	e := x.Entry(a.s.region())
	hash := e.Hash()
	out := auditwire.FromEntry(e)
	out.Hash = hash[:]
	return out
}

// exportAtOnce is how many entries a message of an export has.
const exportAtOnce = 100

// Export sends the region's trail up to a checkpoint.
func (a audits) Export(req *nusav1.ExportAuditRequest, stream grpc.ServerStreamingServer[nusav1.AuditChunk]) error {
	m, err := a.s.master()
	if err == nil {
		err = a.own(req.GetRegion())
	}
	if err == nil {
		err = a.s.record(stream.Context(), m, audit.Entry{Verb: "export", Kind: "audit"})
	}
	if err != nil {
		return err
	}
	view := a.s.State.View()
	end, err := a.signed(stream.Context(), m, view.Audit().Tree())
	if err != nil {
		return err
	}
	tree := view.Audit().Base()
	head := &nusav1.AuditHead{Trail: end.GetTrail(), Key: end.GetKey(), Base: auditwire.FromTree(tree)}
	if err := stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Head{Head: head}}); err != nil {
		return err
	}
	part, hashes := &nusav1.AuditPart{Before: auditwire.FromTree(tree)}, []audit.Hash(nil)
	send := func() error {
		err := stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Part{Part: part}})
		tree = tree.Append(hashes...)
		part, hashes = &nusav1.AuditPart{Before: auditwire.FromTree(tree)}, nil
		return err
	}
	for x := range view.Audit().Entries() {
		e := a.entry(x)
		part.Entries, hashes = append(part.Entries, e), append(hashes, audit.Hash(e.GetHash()))
		if len(part.Entries) == exportAtOnce {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if len(part.Entries) > 0 {
		if err := send(); err != nil {
			return err
		}
	}
	return stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Checkpoint{Checkpoint: end}})
}

// Forward returns the next entries of the trail that the global tier has not stored.
func (a audits) Forward(ctx context.Context, req *nusav1.ForwardAuditRequest) (*nusav1.ForwardAuditResponse, error) {
	m, err := a.s.master()
	if err != nil {
		return nil, err
	}
	stored, err := auditwire.Tree(req.GetStored())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	same := req.GetTrail() == audit.RegionTrail(m.Cluster.Region, m.Cluster.ID)
	part := a.s.Trail.Next(a.s.State.View(), stored, same)
	end, err := a.signed(ctx, m, part.After)
	if err != nil {
		return nil, err
	}
	out := &nusav1.ForwardAuditResponse{
		Trail: end.GetTrail(), Key: end.GetKey(), Signed: end.GetSigned(), More: part.More, Forked: part.Forked,
		Part: &nusav1.AuditPart{Before: auditwire.FromTree(part.Before)},
	}
	for _, x := range part.Entries {
		out.Part.Entries = append(out.Part.Entries, a.entry(x))
	}
	return out, nil
}
