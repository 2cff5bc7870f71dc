package client

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// auditServer has a trail of its own.
type auditServer struct {
	nusav1.UnimplementedAuditServer
	signer, key string
	records     []*nusav1.AuditRecord
	tree        audit.Tree
}

func newAuditServer(t *testing.T) *auditServer {
	t.Helper()
	a := &auditServer{}
	var err error
	a.signer, a.key, err = audit.GenerateKey(rand.Reader, audit.GlobalTrail("FED"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *auditServer) add(names ...string) {
	var entries []audit.Entry
	for _, name := range names {
		entries = append(entries, audit.Entry{Who: "operator/jane", Verb: "submit", Kind: "job", Namespace: "default", Name: name, Outcome: audit.Done}.Bounded())
	}
	rec, tree := auditwire.Pack(a.tree, entries)
	a.records, a.tree = append(a.records, rec), tree
}

func (a *auditServer) List(_ context.Context, req *nusav1.ListAuditRequest) (*nusav1.ListAuditResponse, error) {
	f, err := auditwire.FilterOf(req)
	if err != nil {
		return nil, err
	}
	var out []*nusav1.AuditEntry
	for i := range a.records {
		entries, _, err := auditwire.Unpack(a.records[len(a.records)-1-i])
		if err != nil {
			return nil, err
		}
		for j := range entries {
			if e := entries[len(entries)-1-j]; f.Shows(e) {
				out = append(out, e)
			}
		}
	}
	return f.Page(out), nil
}

func (a *auditServer) Export(_ *nusav1.ExportAuditRequest, stream grpc.ServerStreamingServer[nusav1.AuditChunk]) error {
	signed, err := audit.Sign(a.signer, a.tree)
	if err != nil {
		return err
	}
	head := &nusav1.AuditHead{Trail: audit.GlobalTrail("FED"), Key: a.key, Base: &nusav1.AuditTree{}}
	if err := stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Head{Head: head}}); err != nil {
		return err
	}
	for _, rec := range a.records {
		entries, _, err := auditwire.Unpack(rec)
		if err != nil {
			return err
		}
		part := &nusav1.AuditPart{Entries: entries, Before: rec.GetBefore()}
		if err := stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Part{Part: part}}); err != nil {
			return err
		}
	}
	end := &nusav1.AuditCheckpoint{Trail: audit.GlobalTrail("FED"), Size: a.tree.Size, Signed: signed, Key: a.key}
	return stream.Send(&nusav1.AuditChunk{Kind: &nusav1.AuditChunk_Checkpoint{Checkpoint: end}})
}

// TestAuditCommands: the trail is listed, exported and verified. The verification of a file needs
// no server.
func TestAuditCommands(t *testing.T) {
	f := newFake(t)
	f.audit.add("api", "web")
	f.audit.add("db")
	dir := t.TempDir()
	run := func(code int, want string, args ...string) {
		t.Helper()
		out, errOut, got := f.run(t.Context(), "", args...)
		if got != code || !strings.Contains(out+errOut, want) {
			t.Errorf("nusa %s ended with %d, want %d:\n%s%s\nwithout %q", strings.Join(args, " "), got, code, out, errOut, want)
		}
	}
	addr := "--addr=" + f.addr
	run(0, "default/db", "audit", "list", addr)
	run(0, "default/api", "audit", "list", "--name", "a*", "--limit", "1", addr)
	run(0, "no entries", "audit", "list", "--verb", "exec", addr)
	run(0, `"name": "web"`, "audit", "show", "2", "-o", "json", addr)
	run(1, "is none of done, started, denied", "audit", "list", "--outcome", "failed", addr)
	run(1, "--stored needs --region", "audit", "list", "--stored", addr)
	run(1, "--stored needs --region", "audit", "export", "--stored", addr)
	run(1, "no entry 9", "audit", "show", "9", addr)
	run(1, "not the number of an entry", "audit", "show", "x", addr)
	run(0, "sound", "audit", "verify", addr)
	first, second := filepath.Join(dir, "first.jsonl"), filepath.Join(dir, "second.jsonl")
	run(0, "", "audit", "export", "-f", first, addr)
	run(1, "exists", "audit", "export", "-f", first, addr)
	f.audit.add("cron")
	run(0, "", "audit", "export", "-f", second, addr)
	elsewhere := "--addr=127.0.0.1:1"
	run(0, "4 entries, 1 to 4", "audit", "verify", second, "--key", f.audit.key, "--checkpoint", first, elsewhere)
	run(1, "truncated", "audit", "verify", first, "--key", f.audit.key, "--checkpoint", second, elsewhere)
	run(1, "public key", "audit", "verify", first, "--key", "x", elsewhere)
	text, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(dir, "changed.jsonl")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), `"name":"web"`, `"name":"evil"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	run(1, "entry 2: changed", "audit", "verify", changed, "--key", f.audit.key, elsewhere)
	run(1, `"damage": "changed"`, "audit", "verify", changed, "-o", "json", elsewhere)
	other := newAuditServer(t)
	run(1, "unsigned", "audit", "verify", second, "--key", other.key, elsewhere)
	run(1, "no audit trail", "audit", "verify", os.Args[0], elsewhere)
}
