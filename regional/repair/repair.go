package repair

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// Interval is how often everything is compared.
	Interval = 10 * time.Minute
	// tick is how often the Repairer looks for agents that are due.
	tick = 10 * time.Second
	// afterAttach is how long after the beginning of its session an agent is compared.
	afterAttach = 30 * time.Second
	// atOnce bounds the agents that one tick compares.
	atOnce = 50
	// lookAgain is the time between two looks. A difference counts if both looks find it.
	lookAgain = 5 * time.Second
	// maxRepairs bounds the repairs that a result lists.
	maxRepairs = 100
)

// Config has what a Repairer needs of its term.
type Config struct {
	Region string
	View   func() *state.View
	Agents Agents
	// Ask asks the agent of a node which orders it has. With compare, the agent first compares its
	// records with what its drivers run. An agent of an earlier version does not implement that.
	Ask func(ctx context.Context, nodeID string, compare bool) (*nusav1.HeldOrders, error)
	// CheckNodes compares the cache of the scheduler with the log, and returns the nodes that
	// differ, or false if ctx ended.
	CheckNodes func(context.Context) ([]string, bool)
	// Observe gets each kind of repair.
	Observe func(tier, kind string)
	Log     *slog.Logger
}

// Agents is what the master knows about the agents: nodes.Outboxes.
type Agents interface {
	Attached() map[string]any
	Outbox(id string) (orders map[string]uint64, complete bool)
	Refill(id string)
	Repeat(id string, orders, removals []string)
	OldLog() string
	LogSuspect() bool
}

// Repairer compares and repairs during one term of a master.
type Repairer struct {
	Config
	// running has capacity 1: one comparison runs at a time.
	running chan struct{}

	mu   sync.Mutex
	seen map[string]compared // by node
}

// compared is when a session was first seen, and when its agent was last compared.
type compared struct {
	session     any
	since, last time.Time
}

// New returns a Repairer.
func New(cfg Config) *Repairer {
	return &Repairer{Config: cfg, running: make(chan struct{}, 1), seen: map[string]compared{}}
}

// Run compares until ctx ends: each agent some time after the beginning of its session, and everything
// in each Interval.
func (r *Repairer) Run(ctx context.Context) error {
	last := time.Now()
	for range wait.Ticks(ctx, tick) {
		now := time.Now()
		due := r.due(now)
		whole := now.Sub(last) >= Interval
		if whole {
			last = now
		}
		if len(due) > 0 || whole {
			r.compare(ctx, due, whole)
		}
	}
	return ctx.Err()
}

// Now compares everything.
func (r *Repairer) Now(ctx context.Context) []*nusav1.ReconcileResult {
	var all []string
	for id := range r.Agents.Attached() {
		all = append(all, id)
	}
	return r.compare(ctx, all, true)
}

// due returns the nodes whose agents are to be compared now, at most atOnce.
func (r *Repairer) due(now time.Time) (out []string) {
	attached := r.Agents.Attached()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.seen {
		if attached[id] == nil {
			delete(r.seen, id)
		}
	}
	for id, session := range attached {
		c := r.seen[id]
		if c.session != session {
			c = compared{session: session, since: now}
		}
		after := c.last.Add(Interval)
		if c.last.IsZero() {
			after = c.since.Add(afterAttach)
		}
		if !now.Before(after) && len(out) < atOnce {
			out = append(out, id)
			c.last = now
		}
		r.seen[id] = c
	}
	return out
}

// compare compares some agents, and with whole also the scheduler.
func (r *Repairer) compare(ctx context.Context, agents []string, whole bool) []*nusav1.ReconcileResult {
	select {
	case r.running <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-r.running }()
	began := time.Now()
	own, below := r.result("region"), r.result("agent")
	switch old := r.Agents.OldLog(); {
	case old != "":
		own.out.Skipped = old
	case r.Agents.LogSuspect():
		own.out.Skipped = "it is not certain yet that the log is no old copy"
	default:
		if whole {
			r.scheduler(ctx, own)
		}
		r.agents(ctx, agents, own, below)
	}
	own.out.Took = durationpb.New(time.Since(began))
	return []*nusav1.ReconcileResult{own.out, below.out}
}

// scheduler compares the cache of the scheduler with the log.
func (r *Repairer) scheduler(ctx context.Context, to *result) {
	ctx, cancel := context.WithTimeout(ctx, lookAgain)
	defer cancel()
	wrong, ok := r.CheckNodes(ctx)
	if !ok {
		to.out.Skipped = "the scheduler makes no plans now, so its cache was not compared"
		return
	}
	to.compared(r.View().NodeCount())
	for _, id := range wrong {
		to.repaired("scheduler_differs", id, "the scheduler's cache of the node's resources differs from the log", "the cache was made from the log again")
	}
}

// result collects what a comparison finds.
type result struct {
	r   *Repairer
	mu  sync.Mutex
	out *nusav1.ReconcileResult
}

func (r *Repairer) result(tier string) *result {
	return &result{r: r, out: &nusav1.ReconcileResult{Tier: tier, Region: r.Region}}
}

func (x *result) compared(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.out.Compared += int64(n)
}

// skipped notes why something was not compared.
func (x *result) skipped(why string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.out.Skipped = why
}

// repaired counts and logs a repair.
func (x *result) repaired(kind, object, why, repair string) {
	x.r.Log.Warn("a difference was repaired", "tier", x.out.GetTier(), "kind", kind, "object", object, "why", why, "repair", repair)
	x.r.Observe(x.out.GetTier(), kind)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.out.Repairs) == maxRepairs {
		x.out.More++
		return
	}
	x.out.Repairs = append(x.out.Repairs, &nusav1.Repair{Kind: kind, Object: object, Why: why, Repair: repair})
}
