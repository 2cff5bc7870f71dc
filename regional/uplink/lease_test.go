package uplink

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// committed applies commands to a log.
func committed(t *testing.T, fsm *raftlog.FSM, cmds ...state.Command) {
	t.Helper()
	for i := range cmds {
		l := &raft.Log{Index: fsm.View().Index() + 1, Type: raft.LogCommand, Data: raftlog.Entry(&cmds[i])}
		if err, failed := fsm.Apply(l).(error); failed {
			t.Fatal(err)
		}
	}
}

// TestWelcomeBindsTheLog: the log is bound to a federation once every server of the region
// and of the global tier supports it.
func TestWelcomeBindsTheLog(t *testing.T) {
	level := state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1, NodeLease: time.Second}}
	joined := state.Command{JoinFederation: &state.JoinFederation{FederationID: "fed", Term: 5, Nonce: "n5"}}
	welcome := func(id string, term uint64, level uint32) *nusav1.GlobalWelcome {
		return &nusav1.GlobalWelcome{FederationId: id, LeadershipTerm: &nusav1.LeadershipTerm{Number: term, Nonce: "n5"}, FeatureLevel: level}
	}
	for _, c := range []struct {
		name    string
		log     []state.Command
		welcome *nusav1.GlobalWelcome
		binds   bool
		fails   bool
	}{
		{"the first welcome", []state.Command{level}, welcome("fed", 5, 1), true, false},
		{"a server of the region is old", nil, welcome("fed", 5, 1), false, false},
		{"a global server is old", []state.Command{level}, welcome("", 0, 0), false, false},
		{"one of the global servers is old", []state.Command{level}, welcome("fed", 5, 0), false, false},
		{"bound, and a global server is old", []state.Command{level, joined}, welcome("", 0, 0), false, true},
		{"bound, and a global server that is not the active one is old", []state.Command{level, joined}, welcome("fed", 6, 0), true, false},
		{"bound, and a later leadership", []state.Command{level, joined}, welcome("fed", 6, 1), true, false},
		{"bound, and an earlier leadership", []state.Command{level, joined}, welcome("fed", 4, 1), false, true},
		{"bound, and another federation", []state.Command{level, joined}, welcome("other", 9, 1), false, true},
	} {
		fsm := raftlog.NewFSM()
		committed(t, fsm, c.log...)
		u := New(Config{FSM: fsm, Servers: func() []*nusav1.RegionalServer { return nil }})
		join, err := u.joinOf(u.hello(), c.welcome)
		if (err != nil) != c.fails || err == nil && (join != nil) != c.binds {
			t.Errorf("%s: %v, %v", c.name, join, err)
		}
		if foreign := errors.Is(err, errForeign); foreign != (c.welcome.GetFederationId() == "other") {
			t.Errorf("%s: needs an operator: %v", c.name, foreign)
		}
	}
}

// inSession is a stream with a context.
type inSession struct {
	globalStream
	ctx context.Context
}

func (s inSession) Context() context.Context { return s.ctx }

// TestWelcomeFollowsAnEarlierOne: an earlier session has proposed its welcome and has ended. The
// log cannot commit, and gets that welcome later. The welcome of the present session must follow,
// so that the log has no orders of the present leadership under the numbers of another one.
func TestWelcomeFollowsAnEarlierOne(t *testing.T) {
	level := state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1, NodeLease: time.Second}}
	joined := state.Command{JoinFederation: &state.JoinFederation{FederationID: "fed", Term: 5, Nonce: "n"}}
	welcome := func(term uint64, level uint32) *nusav1.GlobalWelcome {
		return &nusav1.GlobalWelcome{FederationId: "fed", LeadershipTerm: &nusav1.LeadershipTerm{Number: term, Nonce: "n"}, FeatureLevel: level}
	}
	for _, c := range []struct {
		name             string
		log              []state.Command
		earlier, present *nusav1.GlobalWelcome
		want             uint64 // the term that the log has afterwards
		err              error
	}{
		{"the first welcome, then that of an earlier version", []state.Command{level}, welcome(4, 1), welcome(5, 0), 5, nil},
		{"a later leadership, then the one that the log has", []state.Command{level, joined}, welcome(6, 1), welcome(5, 1), 6, state.ErrOldLeadership},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fsm, release := raftlog.NewFSM(), make(chan struct{})
				committed(t, fsm, c.log...)
				log := raftlog.NewSequencer(logtest.New(fsm, fsm.View().Index(), release), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- log.Run(ctx) }()
				defer func() { cancel(); <-ended }()
				u := New(Config{FSM: fsm, Log: log, Servers: func() []*nusav1.RegionalServer { return nil }})
				begin := func(ctx context.Context, w *nusav1.GlobalWelcome) error {
					join, err := u.joinOf(u.hello(), w)
					if err != nil {
						return err
					}
					return (&session{u: u, stream: inSession{ctx: ctx}, welcome: join, wake: make(chan struct{}, 1), hasJoined: make(chan struct{})}).join()
				}
				over, end := context.WithCancel(ctx)
				end()
				if err := begin(over, c.earlier); !errors.Is(err, raftlog.ErrUnknownOutcome) {
					t.Fatalf("the earlier session: %v", err)
				}
				present := make(chan error, 1)
				go func() { present <- begin(ctx, c.present) }()
				synctest.Wait() // for the commit
				close(release)
				if err := <-present; !errors.Is(err, c.err) {
					t.Errorf("the present session: %v, want %v", err, c.err)
				}
				synctest.Wait()
				if is := fsm.View().Cluster().LeadershipTerm; is != c.want {
					t.Errorf("the log has term %d, want %d", is, c.want)
				}
			})
		})
	}
}

// TestSessionEndsWhenTheLevelRises: the last old server of the region was upgraded. The
// session ends, and the next hello has the higher level.
func TestSessionEndsWhenTheLevelRises(t *testing.T) {
	fsm := raftlog.NewFSM()
	u := New(Config{FSM: fsm, Servers: func() []*nusav1.RegionalServer { return nil }})
	ss := &session{u: u, level: u.hello().GetFeatureLevel()}
	if _, err := ss.checkCluster(time.Time{}); err != nil {
		t.Error(err)
	}
	committed(t, fsm, state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1}})
	if _, err := ss.checkCluster(time.Time{}); !errors.Is(err, errLevel) {
		t.Errorf("after the upgrade: %v", err)
	}
	ss.level = u.hello().GetFeatureLevel()
	if _, err := ss.checkCluster(time.Time{}); err != nil {
		t.Errorf("in the next session: %v", err)
	}
}

// TestSessionEndsWhenTheRegionIsRebound: a rebind found no session, and was stored after a session began.
func TestSessionEndsWhenTheRegionIsRebound(t *testing.T) {
	fsm := raftlog.NewFSM()
	u := New(Config{FSM: fsm, Servers: func() []*nusav1.RegionalServer { return nil }})
	join := &state.JoinFederation{FederationID: "FED", Term: 1}
	committed(t, fsm, state.Command{JoinFederation: join})
	ss := &session{u: u, level: u.hello().GetFeatureLevel(), welcome: join}
	if _, err := ss.checkCluster(time.Time{}); err != nil {
		t.Error(err)
	}
	committed(t, fsm, state.Command{RebindFederation: &state.RebindFederation{FederationID: "OTHER"}})
	if _, err := ss.checkCluster(time.Time{}); !errors.Is(err, errRebound) {
		t.Errorf("after the rebind: %v", err)
	}
}

// TestManyDrivers: a region with more drivers than its messages list says that the lists are cut. Its report then names
// none, because an earlier version of the global tier would take the names for all.
func TestManyDrivers(t *testing.T) {
	for n, want := range map[int]struct {
		listed, forms int
		cut           bool
	}{maxDrivers: {maxDrivers, maxDrivers, false}, maxDrivers + 1: {0, maxDrivers, true}} {
		fsm, node := raftlog.NewFSM(), state.Node{ID: "n1", Name: "n1"}
		inv := &nusav1.NodeInventory{}
		for i := range n {
			name := fmt.Sprintf("vm%02d", i)
			node.Drivers = append(node.Drivers, state.Driver{Name: name, Healthy: true})
			inv.Drivers = append(inv.Drivers, &nusav1.DriverInfo{Name: name, Healthy: true})
		}
		node.Inventory, _ = proto.Marshal(inv)
		committed(t, fsm, state.Command{UpsertNode: &state.UpsertNode{Node: node}})
		if names, cut := healthyDrivers(fsm.View()); len(names) != want.listed || cut != want.cut {
			t.Errorf("%d drivers: the report lists %d, cut %v", n, len(names), cut)
		}
		if forms := (&formReader{}).read(fsm.View()); len(forms.GetDrivers()) != want.forms || forms.GetTruncated() != want.cut {
			t.Errorf("%d drivers: the forms list %d, cut %v", n, len(forms.GetDrivers()), forms.GetTruncated())
		}
	}
}
