package regional

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// heldStream notes when it was sent what an agent waits for.
type heldStream struct {
	grpc.ServerStream
	ctx context.Context
	mu  sync.Mutex
	at  map[string]time.Duration
	t0  time.Time
}

func (f *heldStream) Context() context.Context { return f.ctx }
func (f *heldStream) Recv() (*nusav1.AgentMessage, error) {
	<-f.ctx.Done()
	return nil, f.ctx.Err()
}
func (f *heldStream) Send(m *nusav1.MasterMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m.Kind.(type) {
	case *nusav1.MasterMessage_Lease:
		f.at["lease"] = time.Since(f.t0)
	case *nusav1.MasterMessage_Tunnel:
		f.at["tunnel"] = time.Since(f.t0)
	}
	return nil
}

// SendMsg takes the orders, which nobody waits for here.
func (f *heldStream) SendMsg(any) error { return nil }

// What an agent asks for is answered at once, also while orders are held back.
func TestAskedForIsAnsweredAtOnce(t *testing.T) {
	for _, what := range []string{"lease", "tunnel"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				l := &leader{s: &server{cfg: Config{NodeLease: time.Second}, fsm: raftlog.NewFSM()}, ctx: ctx, epoch: "e"}
				l.agents = newAgents(l)
				l.sched = newScheduler(l)
				l.sched.more.Store(true) // a large job is being planned
				done := make(chan struct{})
				go func() { defer close(done); _ = l.agents.deliver(ctx) }()
				n := l.agents.node("n")
				st := &heldStream{ctx: ctx, at: map[string]time.Duration{}, t0: time.Now()}
				ss := &agentSession{l: l, node: n, stream: st, hello: &nusav1.AgentHello{NodeId: "n"}}
				n.mu.Lock()
				n.session = ss
				n.fill(l.s.fsm.View(), l.epoch)
				ss.cursor = n.outbox.Cursor(link.Position{})
				n.mu.Unlock()
				if what == "lease" {
					ss.poke() // an order for the node was committed
					// the receiver has handled a lease request
					_ = ss.later(func() error { ss.grants = append(ss.grants, 1); return nil })
					if ss.isDue() && ss.mayFlush() {
						ss.flush()
					}
				} else if err := ss.requestTunnel(ctx, "x"); err != nil { // somebody wants logs
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				cancel()
				<-done
				l.s.streams.Wait()
				if at, sent := st.at[what]; !sent || at > 0 {
					t.Errorf("%s: sent %v, after %v", what, sent, at)
				}
			})
		})
	}
}
