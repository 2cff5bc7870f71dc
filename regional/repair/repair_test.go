package repair

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/nodes"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// region is a region with one node, whose agent and outbox the test can change.
type region struct {
	mu       sync.Mutex
	view     *state.View
	outbox   map[string]uint64
	agent    map[string]uint64
	session  any
	asked    int
	old      string
	suspect  bool
	repairs  []*nusav1.Repair // what the agent repairs when it is asked to compare
	earlier  bool             // the agent is of an earlier version
	progress func()           // runs between two looks
	wrong    []string         // the nodes whose cache differs
	counted  map[string]int
}

const node = "node-1"

// newRegion returns a healthy region with two allocations.
func newRegion(t *testing.T) *region {
	t.Helper()
	s := state.New()
	apply := func(index uint64, cmd state.Command) {
		cmd.NowUnixNano = int64(index)
		if r := s.Apply(index, cmd); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	apply(1, state.Command{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "alpha"}})
	apply(2, state.Command{UpsertNode: &state.UpsertNode{Node: state.Node{ID: node, Name: "n1", Pool: "default", Capacity: state.Resources{CPUMilli: 4000, MemoryBytes: 1 << 30}}}})
	r := &region{view: s.Snapshot(), session: new(int), counted: map[string]int{}}
	r.outbox = nodes.Wanted(r.view, node)
	r.agent = maps.Clone(r.outbox)
	return r
}

func (r *region) Attached() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == nil {
		return nil
	}
	return map[string]any{node: r.session}
}

func (r *region) Outbox(string) (map[string]uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.outbox), true
}

func (r *region) Refill(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outbox = nodes.Wanted(r.view, node)
}

func (r *region) Repeat(_ string, orders, removals []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range orders {
		r.agent[id] = nodes.Wanted(r.view, node)[id]
	}
	for _, id := range removals {
		delete(r.agent, id)
	}
}

func (r *region) OldLog() string   { return r.old }
func (r *region) LogSuspect() bool { return r.suspect }

func (r *region) ask(_ context.Context, _ string, compare bool) (*nusav1.HeldOrders, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.earlier {
		return nil, status.Error(codes.Unimplemented, "of an earlier version")
	}
	out := &nusav1.HeldOrders{}
	if compare {
		out.Repairs, r.repairs = r.repairs, nil
	}
	for _, id := range slices.Sorted(maps.Keys(r.agent)) {
		out.Orders = append(out.Orders, &nusav1.HeldOrder{Id: id, Index: r.agent[id]})
	}
	if r.progress != nil && r.asked == 1 {
		r.progress()
	}
	return out, nil
}

func (r *region) repairer() *Repairer {
	return New(Config{
		Region: "alpha", View: func() *state.View { return r.view }, Agents: r, Ask: r.ask, Log: slog.New(slog.DiscardHandler),
		CheckNodes: func(context.Context) ([]string, bool) { return r.wrong, true },
		Observe: func(tier, kind string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.counted[tier+" "+kind]++
		},
	})
}

// text returns the repairs of a comparison.
func text(results []*nusav1.ReconcileResult) string {
	var out []string
	for _, x := range results {
		for _, p := range x.GetRepairs() {
			out = append(out, fmt.Sprintf("%s %s %s", x.GetTier(), p.GetKind(), p.GetObject()))
		}
		if x.GetSkipped() != "" {
			out = append(out, x.GetTier()+": "+x.GetSkipped())
		}
	}
	return strings.Join(out, ", ")
}

// TestRepairs: planted differences are found, counted and repaired: the next comparison finds
// nothing. A healthy region has none. Work that is on its way is no difference.
func TestRepairs(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(r *region)
		want  string
		left  string // what the next comparison finds
	}{
		{"healthy", func(*region) {}, "", ""},
		{"the agent runs what the log does not know", func(r *region) { r.agent["x"] = 7 }, "agent agent_stray n1/x", ""},
		{"the outbox has what the log does not know", func(r *region) { r.outbox["x"] = 7 }, "region outbox_stray n1/x", ""},
		{"both", func(r *region) { r.agent["x"], r.outbox["y"] = 7, 8 }, "region outbox_stray n1/y, agent agent_stray n1/x", ""},
		{"the scheduler's cache differs", func(r *region) { r.wrong = []string{node} }, "region scheduler_differs node-1", "region scheduler_differs node-1"},
		{"the removal was on its way", func(r *region) {
			r.agent["x"] = 7
			r.progress = func() { delete(r.agent, "x") }
		}, "", ""},
		{"the session ended between the looks", func(r *region) {
			r.agent["x"] = 7
			r.progress = func() { r.session = new(string) }
		}, "", "agent agent_stray n1/x"},
		{"the log may be an old copy", func(r *region) { r.agent["x"], r.suspect = 7, true }, "region: it is not certain yet that the log is no old copy", "region: it is not certain yet that the log is no old copy"},
		{"the log is an old copy", func(r *region) { r.agent["x"], r.old = 7, "it is old" }, "region: it is old", "region: it is old"},
		{"the agent stopped what no record has", func(r *region) {
			r.repairs = []*nusav1.Repair{{Kind: "instance_unknown", Object: "x/web/1"}}
		}, "agent instance_unknown n1/x/web/1", ""},
		{"the agent reports nonsense", func(r *region) {
			r.repairs = []*nusav1.Repair{{Kind: "nonsense", Object: strings.Repeat("x", 2*maxText)}}
		}, "agent instance_other n1/" + strings.Repeat("x", maxText), ""},
		{"an agent of an earlier version", func(r *region) { r.agent["x"], r.outbox["y"], r.earlier = 7, 7, true }, "region outbox_stray n1/y", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRegion(t)
			c.plant(r)
			x := r.repairer()
			if got := text(x.Now(t.Context())); got != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
			r.mu.Lock()
			if n := len(r.counted); n != strings.Count(c.want, "n1/")+strings.Count(c.want, "node-1") {
				t.Errorf("%s: %v are counted", c.name, r.counted)
			}
			r.mu.Unlock()
			if got := text(x.Now(t.Context())); got != c.left {
				t.Errorf("%s: the next comparison finds %q, want %q", c.name, got, c.left)
			}
		})
	}
}

// TestWhenAgentsAreCompared: an agent is compared some time after the beginning of each session, and
// then in each interval.
func TestWhenAgentsAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegion(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.repairer().Run(ctx) }()
		asked := func(within time.Duration) int {
			r.mu.Lock()
			before := r.asked
			r.mu.Unlock()
			time.Sleep(within)
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.asked - before
		}
		for _, c := range []struct {
			name   string
			within time.Duration
			want   int
		}{
			{"at the beginning of the session", afterAttach - time.Second, 0},
			{"then", 2 * tick, 1},
			{"for the rest of the interval", Interval - 5*tick, 0},
			{"at its end", 6 * tick, 1},
		} {
			if n := asked(c.within); n != c.want {
				t.Errorf("%s: the agent was asked %d times, want %d", c.name, n, c.want)
			}
		}
		r.mu.Lock()
		r.session = new(string)
		r.mu.Unlock()
		if n := asked(afterAttach + 2*tick); n != 1 {
			t.Errorf("after a reconnection: %d times", n)
		}
		cancel()
		<-ended
	})
}
