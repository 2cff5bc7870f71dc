package master

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/member"
)

// FuzzServers: whatever a server that is no master sends of the region, the agent remembers a bounded number
// of servers and never forgets all of them. It gets no work and no lease.
func FuzzServers(f *testing.F) {
	list := &nusav1.ServerList{Servers: []*nusav1.RegionalServer{{Address: "b:1"}, {Address: "a:1"}, {}}, Keys: &nusav1.KeyGoal{Version: 1, Want: &nusav1.KeyState{Roots: []string{"r"}}}}
	for _, m := range []*nusav1.MasterMessage{
		{Kind: &nusav1.MasterMessage_Servers{Servers: list}},
		{Kind: &nusav1.MasterMessage_Servers{Servers: &nusav1.ServerList{Servers: slices.Repeat(list.Servers, 30)}}},
		{Kind: &nusav1.MasterMessage_Servers{}},
		{Kind: &nusav1.MasterMessage_Standby{Standby: &nusav1.Standby{MasterAddress: "m:1", Servers: list}}},
		{Kind: &nusav1.MasterMessage_Refused{Refused: &nusav1.Refused{Message: "no", Permanent: true}}},
		{Kind: &nusav1.MasterMessage_Lease{Lease: &nusav1.LeaseGrant{Id: 1, ContinueOnly: true}}},
		{Kind: &nusav1.MasterMessage_Orders{Orders: &nusav1.AllocOrders{Full: true, Last: true, Orders: []*nusav1.AllocOrder{{}}}}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := &nusav1.MasterMessage{}
		if proto.Unmarshal(raw, m) != nil || m.GetWelcome() != nil || m.GetReportsAck() != nil || m.GetTunnel() != nil {
			return // those need the engine, the reports and a stream
		}
		log := slog.New(slog.DiscardHandler)
		orders := &member.Orders{}
		p := NewPool(Config{Log: log, Orders: orders})
		p.servers = []string{"old:1"}
		s := newIdle(p, log)
		defer s.stop()
		err := s.handle(m)
		if len(p.servers) == 0 || len(p.servers) > maxServers || !slices.IsSorted(p.servers) || slices.Contains(p.servers, "") {
			t.Fatalf("the agent knows the servers %.200q", p.servers)
		}
		if s.state == active || p.active != nil || s.latestGrant != 0 || s.stored != nil {
			t.Fatalf("without a welcome the session is in the state %d with the grant %d", s.state, s.latestGrant)
		}
		if goal := m.GetServers().GetKeys(); !proto.Equal(orders.Goal(), goal) {
			t.Fatalf("the agent should have %v, not %v", orders.Goal(), goal)
		}
		if r := m.GetRefused(); r != nil && (err == nil || !strings.Contains(err.Error(), r.GetMessage())) {
			t.Fatalf("refused with %v", err)
		}
	})
}

// newIdle returns a session of a pool that has received nothing yet.
func newIdle(p *Pool, log *slog.Logger) *idle {
	s := &idle{session: &session{pool: p, cfg: p.cfg, log: log, slot: p.slots[0], addr: "s:1", end: func(error) {}}}
	s.watchdog, s.renewal = time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	return s
}

// idle is a session without a stream.
type idle struct{ *session }

func (i *idle) stop() {
	i.watchdog.Stop()
	i.renewal.Stop()
}
