package repair

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// Interval is how often everything is compared.
	Interval = 10 * time.Minute
	// tick is how often the Repairer looks for regions that are due.
	tick = 10 * time.Second
	// afterConnect is how long after the beginning of its session a region is compared.
	afterConnect = 30 * time.Second
	// asking bounds the regions that are asked at the same time, askTimeout one call for the slots of
	// a region, and runTimeout the comparison inside a region.
	asking     = 8
	askTimeout = 30 * time.Second
	runTimeout = 5 * time.Minute
	// lookAgain is the time between two looks. A difference counts if both looks find it.
	lookAgain = 5 * time.Second
	// maxRepairs bounds the repairs that a result lists.
	maxRepairs = 100
)

// Config has what a Repairer needs of its leadership term.
type Config struct {
	State  *state.State
	Commit *state.Committer
	Store  store.Store
	// Dial returns a connection to a region's services.
	Dial func(region string) (*grpc.ClientConn, error)
	// Observe gets each kind of repair.
	Observe func(tier, kind string)
	Log     *slog.Logger
}

// Repairer compares and repairs during one leadership term.
type Repairer struct {
	Config
	// running has capacity 1: one comparison runs at a time.
	running chan struct{}

	mu   sync.Mutex
	seen map[string]compared // by region
}

// compared is when a region's session was first seen, and when the region was last compared.
type compared struct {
	session     uint64
	since, last time.Time
}

// New returns a Repairer.
func New(cfg Config) *Repairer {
	return &Repairer{Config: cfg, running: make(chan struct{}, 1), seen: map[string]compared{}}
}

// Run compares until ctx ends: each region some time after the beginning of its session and in each
// Interval, and the own memory in each Interval. Regions compare by themselves what they have.
func (r *Repairer) Run(ctx context.Context) error {
	last := time.Now()
	for range wait.Ticks(ctx, tick) {
		now := time.Now()
		due, whole := r.due(now), now.Sub(last) >= Interval
		if whole {
			last = now
		}
		if len(due) == 0 && !whole || !r.begin(ctx) {
			continue
		}
		if whole {
			r.memory(ctx)
		}
		r.each(due, func(name string) { r.region(ctx, name) })
		<-r.running
	}
	return ctx.Err()
}

// Now compares everything, or one region, also inside the regions.
func (r *Repairer) Now(ctx context.Context, region string) (out []*nusav1.ReconcileResult) {
	if !r.begin(ctx) {
		return nil
	}
	defer func() { <-r.running }()
	names := []string{region}
	if region == "" {
		out = append(out, r.memory(ctx))
		names = r.known()
	}
	results := make([][]*nusav1.ReconcileResult, len(names))
	at := map[string]int{}
	for i, name := range names {
		at[name] = i
	}
	r.each(names, func(name string) {
		results[at[name]] = append([]*nusav1.ReconcileResult{r.region(ctx, name)}, r.inside(ctx, name)...)
	})
	for _, some := range results {
		out = append(out, some...)
	}
	return out
}

// begin waits until no other comparison runs. It returns false if ctx ended.
func (r *Repairer) begin(ctx context.Context) bool {
	select {
	case r.running <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// each calls do for each region, for some at the same time.
func (r *Repairer) each(names []string, do func(name string)) {
	var asks errgroup.Group
	asks.SetLimit(asking)
	for _, name := range names {
		asks.Go(func() error {
			do(name)
			return nil
		})
	}
	_ = asks.Wait() // the functions return no error
}

// known returns all regions. One without a session is not compared, and its results say so.
func (r *Repairer) known() []string {
	r.State.Lock()
	defer r.State.Unlock()
	return r.State.RegionNames()
}

// due returns the regions that are to be compared now.
func (r *Repairer) due(now time.Time) (out []string) {
	r.State.Lock()
	defer r.State.Unlock()
	if !r.State.Serving() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.seen {
		if x := r.State.Regions[name]; x == nil || x.Session == nil {
			delete(r.seen, name)
		}
	}
	for _, name := range r.State.RegionNames() {
		session := r.State.Regions[name].Session
		if session == nil {
			continue
		}
		c := r.seen[name]
		if c.session != session.Number {
			c = compared{session: session.Number, since: now}
		}
		after := c.last.Add(Interval)
		if c.last.IsZero() {
			after = c.since.Add(afterConnect)
		}
		if !now.Before(after) {
			out = append(out, name)
			c.last = now
		}
		r.seen[name] = c
	}
	return out
}

// result is what a comparison finds.
type result struct {
	r   *Repairer
	out *nusav1.ReconcileResult
	at  time.Time
}

func (r *Repairer) result(region string) *result {
	return &result{r, &nusav1.ReconcileResult{Tier: "global", Region: region}, time.Now()}
}

// end returns the result.
func (x *result) end() *nusav1.ReconcileResult {
	x.out.Took = durationpb.New(time.Since(x.at))
	return x.out
}

// repaired counts and logs a repair.
func (x *result) repaired(kind, object, why, repair string) {
	x.r.Log.Warn("a difference was repaired", "tier", x.out.GetTier(), "region", x.out.GetRegion(), "kind", kind, "object", object, "why", why, "repair", repair)
	x.r.Observe(x.out.GetTier(), kind)
	if len(x.out.Repairs) == maxRepairs {
		x.out.More++
		return
	}
	x.out.Repairs = append(x.out.Repairs, &nusav1.Repair{Kind: kind, Object: object, Why: why, Repair: repair})
}
