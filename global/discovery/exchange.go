package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// rosterEach is how often the list of regions is made.
	rosterEach = time.Second
	// alarmFor is how long the alarm about a full store lasts. A region whose instances do not fit tries
	// again more often.
	alarmFor = 2 * time.Minute
	// alarmKind is the kind of that alarm.
	alarmKind = "services"
	// awaitMost is how long a new active server waits for the regions before it answers.
	awaitMost = 30 * time.Second
)

// errIncomplete: an answer without the instances of some regions would look as if they were gone. For example,
// Prometheus keeps its targets after an error.
var errIncomplete = status.Error(codes.Unavailable, "this server has become active and does not know the services of all regions yet: ask again in some seconds, or ask a regional server")

// Exchange has the instances of all regions during one leadership term.
type Exchange struct {
	// ctx ends with the term.
	ctx   context.Context
	state *state.State
	store *discovery.Store
	log   *slog.Logger
	began time.Duration // of the term

	mu sync.Mutex
	// complete: the instances of all regions were received, or awaitMost has passed.
	complete bool
	// isFull: at fullAt the instances of a region did not fit, and the alarm about that is shown.
	isFull bool
	fullAt time.Duration
}

// New returns the Exchange of a term, which ends with ctx.
func New(ctx context.Context, st *state.State, log *slog.Logger) *Exchange {
	return &Exchange{ctx: ctx, state: st, store: discovery.New(st.Clock), log: log, began: st.Clock()}
}

// Run keeps the list of regions up to date until ctx ends.
func (e *Exchange) Run(ctx context.Context) error {
	for range wait.Ticks(ctx, rosterEach) {
		e.store.SetRoster(e.roster())
		e.endAlarm()
	}
	return ctx.Err()
}

// roster returns the regions that may have instances: all except the lost ones. A region without a
// session is silent.
func (e *Exchange) roster() discovery.Roster {
	e.state.Lock()
	defer e.state.Unlock()
	now := e.state.Clock()
	names := e.state.RegionNames()
	out := discovery.Roster{Regions: make([]discovery.Region, 0, len(names))}
	for _, name := range names {
		r := e.state.Regions[name]
		if r.Record.GetLost() != nil {
			continue
		}
		of := discovery.Region{Name: name}
		if r.Session == nil {
			of.Silent, of.Since = true, now-r.Life.SilentFor(now)
		}
		out.Regions = append(out.Regions, of)
	}
	return out
}

// await returns errIncomplete until the instances of all regions were received in this term. A region that never had
// contact is not awaited. A silent one, or one of an earlier version, is not awaited for longer than awaitMost.
func (e *Exchange) await() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.complete {
		return nil
	}
	have := e.store.Positions("")
	e.state.Lock()
	defer e.state.Unlock()
	for name, r := range e.state.Regions {
		_, has := have[name]
		known := r.Record.GetLost() == nil && (r.Session != nil || r.Report != nil)
		if known && !has && e.state.Clock()-e.began < awaitMost {
			return errIncomplete
		}
	}
	e.complete = true
	return nil
}

// check returns an error unless a session is the present one of a region.
func (e *Exchange) check(region, session string) error {
	e.state.Lock()
	defer e.state.Unlock()
	r := e.state.Regions[region]
	if r == nil || r.Session == nil || fmt.Sprintf("%s-%d", e.state.Epoch, r.Session.Number) != session {
		return status.Errorf(codes.Aborted, "session %q of region %q is over", session, region)
	}
	return nil
}

// exists reports whether the federation has a region, also one that is lost.
func (e *Exchange) exists(region string) bool {
	e.state.Lock()
	defer e.state.Unlock()
	return e.state.Regions[region] != nil
}

// distancesFrom returns the distances from a region.
func (e *Exchange) distancesFrom(from string) func(string) catalog.Distance {
	e.state.Lock()
	view := e.state.TopologyView()
	e.state.Unlock()
	return func(to string) catalog.Distance {
		d := view.Distance(from, to, topology.Percentile(50))
		if !d.Known() {
			return catalog.Distance{}
		}
		return catalog.Distance{RTT: d.RTT, Source: d.Source}
	}
}

// noteFull shows an alarm if the instances of a region do not fit.
func (e *Exchange) noteFull(region string, err error) {
	if status.Code(err) != codes.ResourceExhausted {
		return
	}
	e.mu.Lock()
	e.fullAt, e.isFull = e.state.Clock(), true
	e.mu.Unlock()
	text := "not all services of region " + region + " are known in the other regions: " + status.Convert(err).Message()
	if state.SetObjectAlarm(e.state, alarmKind, text) {
		e.log.Warn("not all services of a region are passed on", "region", region, "error", err)
	}
}

// endAlarm removes the alarm of noteFull some time after the last call.
func (e *Exchange) endAlarm() {
	e.mu.Lock()
	over := e.isFull && e.state.Clock()-e.fullAt > alarmFor
	e.isFull = e.isFull && !over
	e.mu.Unlock()
	if over {
		state.SetObjectAlarm(e.state, alarmKind, "")
	}
}
