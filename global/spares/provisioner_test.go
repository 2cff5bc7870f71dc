package spares

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// newService returns the service over a store in memory.
func newService(t *testing.T) *Service {
	t.Helper()
	mem := store.NewMemory().Client()
	e, err := mem.Campaign(context.Background(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := st.Load(t.Context(), mem); err != nil {
		t.Fatal(err)
	}
	commit := state.NewCommitter(st, mem, e.Guard())
	b := New(Config{Term: api.NewTerm(api.TermConfig{State: st, Commit: commit, Store: mem, Context: t.Context()}), Policy: &webhook.Policy{}})
	if err := b.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(b.ready)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = commit.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		mem.Close()
	})
	return &Service{Current: func() *Book { return b }}
}

// TestRevisionsOfProvisioners: no two records with one name have the same revision, also if the provisioner was
// removed in between. So a caller who checks a revision never replaces a record that it has not read.
func TestRevisionsOfProvisioners(t *testing.T) {
	s := newService(t)
	set := func(revision int64) (*nusav1.Provisioner, error) {
		return s.SetProvisioner(t.Context(), &nusav1.SetProvisionerRequest{Revision: revision, Provisioner: &nusav1.Provisioner{
			Name: "lab", Kind: &nusav1.Provisioner_Command{Command: &nusav1.CommandProvisioner{Program: "add"}},
		}})
	}
	first, err := set(-1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RemoveProvisioner(t.Context(), &nusav1.RemoveProvisionerRequest{Name: "lab"}); err != nil {
		t.Fatal(err)
	}
	second, err := set(-1)
	if err != nil || second.GetRevision() <= first.GetRevision() {
		t.Fatalf("revision %d, then %v, %v", first.GetRevision(), second, err)
	}
	if _, err := set(first.GetRevision()); status.Code(err) != codes.Aborted {
		t.Errorf("the revision of a removed provisioner: %v", err)
	}
	third, err := set(second.GetRevision())
	if err != nil || third.GetRevision() <= second.GetRevision() {
		t.Errorf("revision %d, then %v, %v", second.GetRevision(), third, err)
	}
}
