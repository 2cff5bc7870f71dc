package uplink

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestAuthThatCannotBeStored: a set of roles, or of wanted keys, that the log refuses does not end the
// session, because the next session would get the same set. The earlier set stays.
func TestAuthThatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsm := raftlog.NewFSM()
		committed(t, fsm, state.Command{SetLimits: &state.SetLimits{FeatureLevel: state.FeatureLevel}})
		log := raftlog.NewSequencer(logtest.New(fsm, fsm.View().Index(), nil), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- log.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		ss := &session{u: New(Config{FSM: fsm, Log: log, Logger: slog.New(slog.DiscardHandler), Servers: func() []*nusav1.RegionalServer { return nil }}), wake: make(chan struct{}, 1)}
		for version, description := range []string{"short", strings.Repeat("x", 300<<10)} {
			msg := &nusav1.AuthSet{Version: int64(version + 1), Tokens: []*nusav1.AccessToken{{Accessor: "a", Description: description}}}
			if err := storeAuth(ctx, ss, msg); err != nil {
				t.Fatalf("version %d: %.200s", version+1, err)
			}
		}
		for version, root := range []string{"short", strings.Repeat("x", 300<<10)} {
			goal := &nusav1.KeyGoal{Version: uint64(version + 1), Want: &nusav1.KeyState{Issuer: root}}
			if err := storeKeys(ctx, ss, goal); err != nil {
				t.Fatalf("keys of version %d: %.200s", version+1, err)
			}
		}
		if goal, _ := StoredKeys(fsm.View()); goal.GetVersion() != 1 {
			t.Errorf("stored are the keys of version %d", goal.GetVersion())
		}
		set, _, err := StoredAuth(fsm.View())
		if err != nil || set.GetVersion() != 1 || ss.authAck.GetVersion() != 1 {
			t.Errorf("stored is version %d, acknowledged %d: %v", set.GetVersion(), ss.authAck.GetVersion(), err)
		}
	})
}
