package nodes

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/raftlog/logtest"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/enroll"
)

// TestAgentsStayInTheirPool: an agent that joined for one pool is refused in others.
func TestAgentsStayInTheirPool(t *testing.T) {
	fsm := raftlog.NewFSM()
	log := raftlog.NewSequencer(logtest.New(fsm, 0, nil), fsm, func(*state.View) raftlog.Decision { return raftlog.Decision{} }, func([]state.Result) {})
	go func() { _ = log.Run(t.Context()) }()
	for name, pool := range map[string]string{"fixed": "gpu", "usual": "default", "free": ""} {
		value, err := proto.Marshal(&nusav1.Member{Name: name, Pool: pool})
		if err == nil {
			_, err = log.Commit(t.Context(), state.Command{ChangeDocuments: &state.ChangeDocuments{Puts: []state.Document{{Key: enroll.AgentKey("sea", name), Value: value}}}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a := New(t.Context(), Config{Region: "sea", FSM: fsm})
	for _, c := range []struct{ name, pool, want string }{
		{"fixed", "gpu", ""},
		{"fixed", "cpu", "has joined for pool gpu, and now is in pool cpu"},
		{"fixed", "", "has joined for pool gpu, and now is in pool default"},
		{"usual", "", ""},
		{"usual", "gpu", "has joined for pool default"},
		{"free", "cpu", ""},
		{"unknown", "cpu", ""},
	} {
		r := a.refusePool(&nusav1.AgentHello{Name: c.name, Inventory: &nusav1.NodeInventory{Pool: c.pool}})
		if (r == nil) != (c.want == "") || !strings.Contains(r.GetMessage(), c.want) || r != nil && !r.GetPermanent() {
			t.Errorf("%s in pool %q: %v, want %q", c.name, c.pool, r, c.want)
		}
	}
}
