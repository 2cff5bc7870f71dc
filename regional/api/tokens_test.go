package api

import (
	"context"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/enroll"
)

// TestChangesOfTokensAreRecorded: a change of tokens and members has its entry in the trail, and a
// change that fails has none.
func TestChangesOfTokensAreRecorded(t *testing.T) {
	fsm := raftlog.NewFSM()
	q := raftlog.NewSequencer(logtest.New(fsm, 0, nil), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	for _, cmd := range []state.Command{
		{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "r"}},
		{SetLimits: &state.SetLimits{FeatureLevel: state.AuditLevel}},
	} {
		if _, err := q.Commit(ctx, cmd); err != nil {
			t.Fatal(err)
		}
	}
	store := documents{&Server{State: fsm}, q}
	change := enroll.Change{
		Checks: []enroll.Check{{Key: "identity/token/1"}}, Puts: []enroll.Put{{Key: "identity/token/1", Value: []byte("x")}},
		Audit: &audit.Entry{Verb: "create", Kind: "join token", Name: "1"},
	}
	if err := store.Change(ctx, change); err != nil {
		t.Fatal(err)
	}
	if err := store.Change(ctx, change); err != enroll.ErrChanged {
		t.Errorf("the second change: %v", err)
	}
	var entries []*state.AuditEntry
	for e := range fsm.View().Audit().Entries() {
		entries = append(entries, e)
	}
	if len(entries) != 1 || entries[0].Verb != "create" || entries[0].Name != "1" || entries[0].Outcome != audit.Done {
		t.Errorf("the trail has %d entries: %+v", len(entries), entries)
	}
}
