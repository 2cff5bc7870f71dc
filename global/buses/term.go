package buses

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/hooks"
	"github.com/nusa-scheduler/nusa/global/hooks/delivery"
	"github.com/nusa-scheduler/nusa/global/objects"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The kinds of the keys: see state.OtherKey.
const (
	busKind      = "buses"
	progressKind = "bus-progress"
)

const (
	// maxBuses bounds the buses of a federation.
	maxBuses = 64
	// maxTests bounds the tests in progress.
	maxTests = 8
	// saveEvery is how often the progress of a bus is stored, and lazySave how often it is stored when only
	// events that the bus does not select were read.
	saveEvery, lazySave = time.Second, 30 * time.Second
	// saveAtOnce is the number of records that one request stores.
	saveAtOnce = 32
)

// Config has what the delivery needs of its leadership term.
type Config struct {
	State  *state.State
	Commit *state.Committer
	Store  store.Store
	Source hooks.Source
	Policy *webhook.Policy
	// Metrics are those of the process.
	Metrics *Metrics
	Log     *slog.Logger
	// Dial, Now and Random may be set in tests.
	Dial   func(context.Context, *broker.Target, broker.Sink) (broker.Publisher, error)
	Now    func() time.Time
	Random func() float64
}

// Term publishes events to all buses during one leadership term.
type Term struct {
	Config
	buses    *objects.Table[*nusav1.BusRecord]
	progress *objects.Table[*nusav1.BusProgress]
	crew     objects.Crew[*nusav1.BusRecord, *worker]
	// tests has an element for each test in progress.
	tests chan struct{}
	// ended is closed when Run has returned.
	ended chan struct{}
}

// NewTerm returns the delivery of a term. It must be made before the term serves, and Run must be called.
func NewTerm(cfg Config) *Term {
	if cfg.Dial == nil {
		cfg.Dial = broker.NewPublisher
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	t := &Term{Config: cfg, tests: make(chan struct{}, maxTests), ended: make(chan struct{})}
	t.buses = objects.NewTable(cfg.State, busKind, func() *nusav1.BusRecord { return new(nusav1.BusRecord) })
	t.progress = objects.NewTable(cfg.State, progressKind, func() *nusav1.BusProgress { return new(nusav1.BusProgress) })
	t.crew = objects.Crew[*nusav1.BusRecord, *worker]{
		Begin: t.begin, ID: (*nusav1.BusRecord).GetId, Revision: func(r *nusav1.BusRecord) int64 { return r.GetBus().GetRevision() },
	}
	return t
}

// begin makes the worker of a bus.
func (t *Term) begin(name string, rec *nusav1.BusRecord) *worker {
	saved := delivery.Saved{}
	if p, ok := t.progress.Get(name); ok && p.GetId() == rec.GetId() {
		saved = delivery.Saved{Cursor: p.GetCursor(), Counts: delivery.Counts{Delivered: p.GetPublished(), Dropped: p.GetDropped()}}
	}
	return &worker{
		Term: t, id: rec.GetId(), name: name, report: objects.Reporter(t.Now, t.State.Events.Add), wake: make(chan struct{}, 1),
		stream: delivery.NewStream(saved),
	}
}

// Run delivers until ctx ends. When it returns, no connection is open.
func (t *Term) Run(ctx context.Context) error {
	defer close(t.ended)
	if err := t.progress.Load(ctx, t.Store); err != nil {
		return err
	}
	if err := t.buses.Load(ctx, t.Store); err != nil {
		return err
	}
	defer t.crew.Stop()
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	saved := t.Now()
	for {
		changed := t.buses.Changed.C()
		t.crew.Follow(ctx, t.buses.All())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
			lazy := t.Now().Sub(saved) >= lazySave
			if lazy {
				saved = t.Now()
			}
			t.save(ctx, lazy)
			t.alarm()
		}
	}
}

// save stores the progress that is not stored.
func (t *Term) save(ctx context.Context, lazy bool) {
	type unsavedProgress struct {
		w   *worker
		rec *nusav1.BusProgress
	}
	var due []unsavedProgress
	_, all := t.crew.All()
	for _, w := range all {
		if rec := w.save(lazy); rec != nil {
			due = append(due, unsavedProgress{w, rec})
		}
	}
	for some := range slices.Chunk(due, saveAtOnce) {
		_, err := t.Commit.Do(ctx, func(tx *state.Tx) error {
			for _, p := range some {
				if rec, _ := t.buses.Of(tx, p.w.name); rec.GetId() != p.w.id {
					continue // deleted meanwhile
				}
				if err := t.progress.Put(tx, p.w.name, p.rec); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			continue
		}
		for _, p := range some {
			p.w.saveFailed()
		}
		if ctx.Err() == nil {
			t.Log.Warn("cannot store the progress of buses", "buses", len(some), "error", err)
		}
	}
}

// alarm tells operators which buses fail or have lost events.
func (t *Term) alarm() {
	var found []string
	lag := uint64(0)
	names, all := t.crew.All()
	for i, w := range all {
		if w.alarms() {
			found = append(found, names[i])
		}
		lag = max(lag, w.status().GetLag())
	}
	t.Metrics.lag.Set(float64(lag))
	text := objects.AlarmText("events wait too long for buses, or were removed before they were published", found, "nusa bus list")
	if state.SetObjectAlarm(t.State, busKind, text) {
		t.Log.Error(text)
	}
}

// alarms reports whether an operator has to look at the bus.
func (w *worker) alarms() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active() == nil {
		return w.broken != ""
	}
	now := w.Now()
	return !w.dropped.IsZero() && now.Sub(w.dropped) < objects.RecentLoss || !w.failing.IsZero() && now.Sub(w.failing) >= failingAlarm
}
