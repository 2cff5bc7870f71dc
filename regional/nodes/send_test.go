package nodes

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// timedStream records when it sent the messages that an agent waits for.
type timedStream struct {
	grpc.ServerStream
	ctx   context.Context
	began time.Time
	mu    sync.Mutex
	at    map[string]time.Duration
}

func (f *timedStream) Context() context.Context { return f.ctx }

func (f *timedStream) Recv() (*nusav1.AgentMessage, error) {
	<-f.ctx.Done()
	return nil, f.ctx.Err()
}

func (f *timedStream) Send(m *nusav1.MasterMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m.Kind.(type) {
	case *nusav1.MasterMessage_Lease:
		f.at["lease"] = time.Since(f.began)
	case *nusav1.MasterMessage_Tunnel:
		f.at["tunnel"] = time.Since(f.began)
	}
	return nil
}

// SendMsg ignores the orders.
func (f *timedStream) SendMsg(any) error { return nil }

// TestGrantsAndTunnelsAreNotDelayed: grants and tunnel requests are sent at once, even
// while orders are delayed.
func TestGrantsAndTunnelsAreNotDelayed(t *testing.T) {
	for _, what := range []string{"lease", "tunnel"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var streams sync.WaitGroup
				a := New(ctx, Config{
					NodeLease: time.Second, Epoch: "e", FSM: raftlog.NewFSM(), Logger: slog.New(slog.DiscardHandler), Streams: &streams,
					RegionLease: func() time.Duration { return 0 },
					MorePlanned: func() bool { return true }, // more orders follow, like during the plan of a large job
				})
				done := make(chan struct{})
				go func() { defer close(done); _ = a.Deliver(ctx) }()
				n := a.ensure("n")
				st := &timedStream{ctx: ctx, at: map[string]time.Duration{}, began: time.Now()}
				ss := &session{agents: a, node: n, stream: st, hello: &nusav1.AgentHello{NodeId: "n"}}
				n.mu.Lock()
				n.session = ss
				n.fill(a.cfg.FSM.View(), a.cfg.Epoch)
				ss.cursor = n.outbox.Cursor(link.Position{})
				n.mu.Unlock()
				if what == "lease" {
					ss.requestSend() // an order for the node was committed
					if err := ss.grant(ctx, nil); err != nil {
						t.Fatal(err)
					}
					if ss.startSend() { // like the receiver after a lease request
						ss.sendAll()
					}
				} else if err := ss.requestTunnel(ctx, "x"); err != nil { // a user asked for logs
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				cancel()
				<-done
				streams.Wait()
				if at, sent := st.at[what]; !sent || at > 0 {
					t.Errorf("%s: sent %v, after %v", what, sent, at)
				}
			})
		})
	}
}

// listedStream lists the messages that it sent.
type listedStream struct {
	timedStream
	sent []string
}

func (f *listedStream) Send(*nusav1.MasterMessage) error {
	f.sent = append(f.sent, "grant")
	return nil
}

func (f *listedStream) SendMsg(any) error {
	f.sent = append(f.sent, "orders")
	return nil
}

// TestReturnedNodeGetsItsOrdersBeforeItsLease: a node was lost, and its instances may run
// on other nodes now. All its orders are sent before its first lease. Later leases do not
// wait for orders.
func TestReturnedNodeGetsItsOrdersBeforeItsLease(t *testing.T) {
	for _, was := range []phase{current, resyncing} {
		a := New(t.Context(), Config{
			NodeLease: time.Second, Epoch: "e", FSM: raftlog.NewFSM(), Logger: slog.New(slog.DiscardHandler), Clock: func() time.Duration { return 0 },
			RegionLease: func() time.Duration { return 0 },
		})
		st := &listedStream{}
		ss := &session{agents: a, node: a.ensure("n"), stream: st, hello: &nusav1.AgentHello{NodeId: "n"}, sending: sendActive, phase: was}
		ss.attach()
		if err := ss.finishResync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(2) {
			ss.node.mu.Lock()
			ss.node.outbox.PutAt(i+1, "a", i+1)
			ss.node.mu.Unlock()
			if err := ss.grant(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if err := ss.send(); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"grant", "orders", "grant", "orders"}
		if was == resyncing {
			want = []string{"orders", "grant", "orders"}
		}
		if got := slices.Compact(st.sent); !slices.Equal(got, want) {
			t.Errorf("phase %d: sent %v, want %v", was, got, want)
		}
	}
}

// TestOrdersComeBeforeTheReturningRegionLease: the region had no lease, and tasks wait for
// it. The agent gets its orders before the lease, so that lost tasks do not start again.
// Later grants do not wait for orders.
func TestOrdersComeBeforeTheReturningRegionLease(t *testing.T) {
	left := time.Duration(0)
	a := New(t.Context(), Config{
		NodeLease: time.Second, Epoch: "e", FSM: raftlog.NewFSM(), Logger: slog.New(slog.DiscardHandler), Clock: func() time.Duration { return 0 },
		RegionLease: func() time.Duration { return left },
	})
	st := &listedStream{}
	ss := &session{agents: a, node: a.ensure("n"), stream: st, hello: &nusav1.AgentHello{NodeId: "n"}, sending: sendActive}
	ss.attach()
	for i, c := range []struct {
		left time.Duration
		want string
	}{{0, "grant orders"}, {time.Second, "orders grant"}, {time.Second, "grant orders"}, {0, "grant orders"}, {time.Second, "orders grant"}} {
		left, st.sent = c.left, nil
		ss.node.mu.Lock()
		ss.node.outbox.PutAt(uint64(i+1), "a", uint64(i+1))
		ss.node.mu.Unlock()
		if err := ss.grant(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if err := ss.send(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(slices.Compact(st.sent), " "); got != c.want {
			t.Errorf("grant %d with %s left: sent %s, want %s", i+1, left, got, c.want)
		}
	}
}
