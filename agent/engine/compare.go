package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// compareInterval is how often the records are compared with the drivers.
	compareInterval = 10 * time.Minute
	// lookLimit bounds one look, and lookAgain is the time between two looks. A difference that
	// both looks find is repaired.
	lookLimit = 4 * time.Second
	lookAgain = 5 * time.Second
	// maxClearing bounds the runs that are stopped at the same time because no record has them.
	// The next comparison stops the others.
	maxClearing = 32
	// clearGrace is how long such a run may take to end by itself.
	clearGrace = 10 * time.Second
	// maxRepairs bounds the repairs that wait for the master's next call.
	maxRepairs = 100
)

// Comparer compares the records of an engine with what its drivers run, and repairs what differs.
// In a healthy node nothing differs. The loop of the engine only copies the records for that.
type Comparer struct {
	engine *Engine
	log    *slog.Logger
	// running has capacity 1: one comparison runs at a time.
	running chan struct{}

	// clearing holds the runs that are being stopped. The engine's loop owns it.
	clearing map[driver.ID]bool

	mu      sync.Mutex
	last    time.Time
	repairs []*nusav1.Repair
}

// NewComparer returns a Comparer of an engine.
func NewComparer(e *Engine) *Comparer {
	return &Comparer{engine: e, log: e.log, running: make(chan struct{}, 1), clearing: map[driver.ID]bool{}, last: time.Now()}
}

// Run compares in each interval until ctx ends.
func (c *Comparer) Run(ctx context.Context) error {
	for range wait.Ticks(ctx, compareInterval/10) {
		c.mu.Lock()
		due := time.Since(c.last) >= compareInterval
		c.mu.Unlock()
		if due {
			c.Compare(ctx)
		}
	}
	return nil
}

// Take returns the repairs since the last call of Take.
func (c *Comparer) Take() []*nusav1.Repair {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.repairs
	c.repairs = nil
	return out
}

// Compare compares now. If something differs, a second look follows after lookAgain.
func (c *Comparer) Compare(ctx context.Context) {
	select {
	case c.running <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-c.running }()
	c.mu.Lock()
	c.last = time.Now()
	c.mu.Unlock()
	first := c.look(ctx, nil)
	if len(first.differences) == 0 {
		return
	}
	select {
	case <-time.After(lookAgain):
	case <-ctx.Done():
		return
	}
	second := c.look(ctx, first.differences)
	lasting := reconcile.Lasting(first.differences, second.differences)
	if len(lasting) > 0 {
		c.engine.do(ctx, func() { c.repair(lasting, second) })
	}
}

// records are the engine's records at one moment.
type records struct {
	known map[string]reconcile.Actual
	busy  map[string]bool
	// up are the runs that are recorded as up, with their drivers.
	up map[driver.ID]driver.Driver
	// off says that the agent stops all runs, so nothing is compared.
	off bool
}

// recordsOf returns the present records. The engine's loop calls it.
func (c *Comparer) recordsOf(e *Engine) records {
	r := records{known: make(map[string]reconcile.Actual, len(e.allocs)), busy: maps.Clone(e.removing), up: map[driver.ID]driver.Driver{},
		off: e.host.Leaving || e.host.Pausing}
	for id, a := range e.allocs {
		r.known[id] = a.act // the map of tasks is never changed in place
		for name, t := range a.act.Tasks {
			if drv := e.cfg.Drivers[a.tasks[name].driver]; drv != nil && t.Phase == reconcile.Up {
				r.up[driver.ID{Alloc: id, Task: name, Run: t.Run}] = drv
			}
		}
	}
	for id := range c.clearing {
		r.busy[id.Alloc] = true
	}
	return r
}

// comparison is what one look found.
type comparison struct {
	differences []reconcile.Difference
	seen        map[reconcile.RunID]reconcile.Seen
	found       map[driver.ID]runStatus
	drivers     map[driver.ID]driver.Driver
}

// look compares the records with the drivers. With only, it asks about the runs of these
// differences.
func (c *Comparer) look(ctx context.Context, only []reconcile.Difference) comparison {
	out := comparison{seen: map[reconcile.RunID]reconcile.Seen{}, found: map[driver.ID]runStatus{}, drivers: map[driver.ID]driver.Driver{}}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var before records
	if !c.engine.do(ctx, func() { before = c.recordsOf(c.engine) }) || before.off {
		return out
	}
	wanted := map[driver.ID]bool{}
	for _, d := range only {
		wanted[driver.ID(d.RunID)] = true
	}
	for id, drv := range c.list(ctx, before) {
		if only != nil && !wanted[id] {
			continue
		}
		found := ask(ctx, drv, id)
		s, certain := seenOf(found)
		if certain {
			out.seen[reconcile.RunID(id)], out.found[id], out.drivers[id] = s, found, drv
		}
	}
	var after records
	if !c.engine.do(ctx, func() { after = c.recordsOf(c.engine) }) || after.off {
		return out
	}
	out.differences = reconcile.Lasting(reconcile.Differences(before.known, before.busy, out.seen), reconcile.Differences(after.known, after.busy, out.seen))
	return out
}

// list returns the runs to ask about, with their drivers: those that are recorded as up, and those
// that the drivers have and that may differ from the records.
func (c *Comparer) list(ctx context.Context, r records) map[driver.ID]driver.Driver {
	out := maps.Clone(r.up)
	for name, drv := range c.engine.cfg.Drivers {
		l, ok := drv.(driver.Lister)
		if !ok {
			continue
		}
		ids, err := l.Runs(ctx)
		if err != nil {
			c.log.Warn("the runs of a driver are not compared with the records", "driver", name, "error", err)
			continue
		}
		for _, id := range ids {
			// A run that is alive may differ. The driver says later whether it is alive.
			if len(reconcile.Differences(r.known, r.busy, map[reconcile.RunID]reconcile.Seen{reconcile.RunID(id): reconcile.Alive})) > 0 {
				out[id] = drv
			}
		}
	}
	return out
}

// seenOf returns what a driver says about a run, or false if that is not certain.
func seenOf(found runStatus) (reconcile.Seen, bool) {
	switch {
	case errors.Is(found.err, driver.ErrNotFound):
		return reconcile.Absent, true
	case found.err != nil:
		return 0, false
	case found.status.State == driver.Ended:
		return reconcile.Over, true
	}
	return reconcile.Alive, true
}

// repair repairs the differences that are still there. The engine's loop calls it.
func (c *Comparer) repair(lasting []reconcile.Difference, look comparison) {
	now := c.recordsOf(c.engine)
	if now.off {
		return
	}
	for _, d := range reconcile.Lasting(lasting, reconcile.Differences(now.known, now.busy, look.seen)) {
		id := driver.ID(d.RunID)
		switch {
		case d.Kind == reconcile.DriftGone:
			c.report(d, "it is recorded as running, and its driver says that it is not", "its end was recorded")
			end := endOf(id.Run, nil, look.found[id].status)
			if look.found[id].err != nil {
				end = goneEnd(id)
			}
			c.engine.runEnded(id, end)
		case len(c.clearing) >= maxClearing:
			c.log.Warn("a run that no record has is not stopped yet: too many others are being stopped", "run", id, "limit", maxClearing)
		case d.Kind == reconcile.DriftUnknown:
			c.report(d, "the agent has no order for it", "it was stopped and removed")
			c.clear(look.drivers[id], id, true)
		default:
			c.report(d, "it runs although its task has ended or another run is up", "it was stopped")
			c.clear(look.drivers[id], id, false)
		}
	}
}

// goneEnd is the end of a run that its driver does not know any more.
func goneEnd(id driver.ID) runEnd {
	return runEnd{end: reconcile.TaskActual{Phase: reconcile.Ended, Run: id.Run, Finished: time.Now(), ExitCode: -1,
		Reason: reconcile.ReasonKilledBySignal, Message: "its driver no longer knows the run"}}
}

// clear stops a run, and removes it if remove is true. It tries once: the next comparison finds what
// is left.
func (c *Comparer) clear(drv driver.Driver, id driver.ID, remove bool) {
	e := c.engine
	c.clearing[id] = true
	e.group.Go(func() error {
		ctx, cancel := context.WithTimeout(e.ctx, clearGrace+StatusLimit)
		defer cancel()
		err := drv.Stop(ctx, id, clearGrace)
		if err == nil && remove {
			err = drv.Remove(ctx, id)
		}
		if err != nil && e.ctx.Err() == nil {
			c.log.Error("a run that no record has was not removed", "run", id, "error", err)
		}
		e.post(func() { delete(c.clearing, id) })
		return nil
	})
}

// report logs a repair and keeps it for the master.
func (c *Comparer) report(d reconcile.Difference, why, repair string) {
	object := fmt.Sprint(driver.ID(d.RunID))
	c.log.Warn("a difference was repaired", "tier", "agent", "kind", string(d.Kind), "object", object, "why", why, "repair", repair)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.repairs) < maxRepairs {
		c.repairs = append(c.repairs, &nusav1.Repair{Kind: string(d.Kind), Object: object, Why: why, Repair: repair})
	}
}
