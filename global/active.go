package global

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// active is one reign of this server as the active one: everything soft lives
// in it and ends with it. The next reign makes a fresh one.
type active struct {
	cfg    *Config
	log    *slog.Logger
	store  store.Store
	st     *State
	commit *Committer
	hub    *tunnel.Hub
	// ctx ends with the reign; handlers of streams watch it.
	ctx    context.Context
	end    context.CancelCauseFunc
	hellos keyedLock
	// renew shows the store that this server is still the elected one. While
	// election is held, on Config.Clock, no other server can be. Guarded by the
	// state's lock.
	renew    func(context.Context) error
	election lease.Holder
	// streams numbers the regions' streams.
	streams atomic.Uint64
	woken   chan struct{} // wakes the placer; capacity 1
	metrics *metrics
	// subscribed are the asks that regions were told, guarded by the state's
	// lock.
	subscribed []uint64
	// columnStamp is the matrix that the columns were last sent of.
	columnStamp uint64
	// peersAt is when peers were last sent for their coordinates' sake.
	peersAt time.Duration
	// interestAt is when it was last worked out what jobs ask about.
	interestAt time.Duration
	// compact is the matrix in short as of compactAt; only the tick uses them.
	compact   *nusav1.CompactMatrix
	compactAt time.Duration
	// board is what watchers of the matrix are told.
	board topo.WatchLog
	// instanceWatches counts the watches that follow the instances of all regions.
	instanceWatches atomic.Int32
	// checks lets one check of the matrix run at a time.
	checks chan struct{}
}

// newActive loads the records as of the election.
func newActive(ctx context.Context, cfg *Config, s store.Store, guard store.Compare, hub *tunnel.Hub, m *metrics) (*active, error) {
	a := &active{
		cfg: cfg, log: cfg.Logger, store: s, hub: hub, woken: make(chan struct{}, 1), metrics: m, checks: make(chan struct{}, 1),
		st: New(strconv.FormatInt(guard.Revision, 36), cfg.Clock, cfg.Lease),
	}
	a.ctx, a.end = context.WithCancelCause(ctx)
	a.commit = NewCommitter(a.st, s, guard)
	a.commit.committed = a.wakePlacer
	a.commit.observe = m.observeCommit
	if err := a.st.Load(ctx, s); err != nil {
		a.end(err)
		return nil, err
	}
	return a, nil
}

// run is the reign: it ends with ctx, or with the first failure.
func (a *active) run() error {
	defer a.end(ErrNotActive)
	g, ctx := errgroup.WithContext(a.ctx)
	g.Go(func() error { return a.commit.Run(ctx) })
	g.Go(func() error { return a.placeLoop(ctx) })
	g.Go(func() error { return a.checkpointLoop(ctx) })
	g.Go(func() error { return a.tickLoop(ctx) })
	g.Go(func() error { return a.renewLoop(ctx) })
	g.Go(func() error { return a.predictLoop(ctx) })
	a.wakePlacer()
	return g.Wait()
}

func (a *active) wakePlacer() {
	select {
	case a.woken <- struct{}{}:
	default:
	}
}

// Load reads every record. Only the elected server writes them, so what is
// listed in several steps still belongs together.
func (st *State) Load(ctx context.Context, s store.Store) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.loading = true
	defer func() { st.loading = false }()
	for _, prefix := range []string{regionPrefix, jobPrefix, SlotPrefix, resultPrefix, HealthyPrefix, CheckpointPrefix, originPrefix} {
		type loaded struct {
			kv  store.KV
			msg proto.Message
		}
		var records []loaded
		revision, err := s.List(ctx, prefix, func(kv store.KV) error {
			msg := newRecord(kv.Key)
			if err := Decode(kv, msg); err != nil {
				return err
			}
			records = append(records, loaded{kv, msg})
			return nil
		})
		if err != nil {
			return fmt.Errorf("load the records: %w", err)
		}
		// Outboxes are numbered by revision.
		slices.SortStableFunc(records, func(a, b loaded) int { return int(a.kv.ModRevision - b.kv.ModRevision) })
		for _, r := range records {
			st.apply(r.kv.Key, r.msg, r.kv.ModRevision)
		}
		st.Revision = max(st.Revision, revision)
	}
	for _, r := range st.Regions {
		r.Orders.ForgetUpTo(uint64(st.Revision))
		st.restore(r)
	}
	return st.gatherOrigins()
}

// restore takes a region's checkpoint as its latest summaries. mu is held.
func (st *State) restore(r *Region) {
	if len(r.checkpoint) == 0 {
		return
	}
	whole := int(r.checkpoint[0].GetChunks()) == len(r.checkpoint)
	for _, c := range r.checkpoint {
		for _, sum := range c.GetSummaries() {
			r.SummaryKeys[summaryKey(r.Name, sum)] = struct{}{}
			st.ApplySummary(r, sum)
		}
		if c.GetReport() != nil {
			r.Report, r.ReportAt, r.ReportStale = c.GetReport(), st.Clock(), true
		}
		whole = whole && proto.Equal(c.GetPosition(), r.checkpoint[0].GetPosition())
	}
	if whole {
		p := r.checkpoint[0].GetPosition()
		r.SummariesAt = link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
	}
	r.checkpoint = nil
}

// checkpointLoop stores each region's summaries now and then, so that a
// successor need not wait for every region to know what runs.
func (a *active) checkpointLoop(ctx context.Context) error {
	tick := time.NewTicker(a.cfg.CheckpointInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		a.st.mu.Lock()
		names := a.st.RegionNames()
		a.st.mu.Unlock()
		for _, name := range names {
			switch err := a.checkpoint(ctx, name); {
			case err == nil, errors.Is(err, ErrQueueFull):
			case errors.Is(err, store.ErrTooLarge):
				a.log.Warn("a region's summaries are not checkpointed", "region", name, "error", err)
			default:
				return fmt.Errorf("checkpoint of region %s: %w", name, err)
			}
		}
	}
}

// checkpointBytes bounds one record of a checkpoint.
const checkpointBytes = 512 * 1024

func (a *active) checkpoint(ctx context.Context, name string) error {
	a.st.mu.Lock()
	r := a.st.Regions[name]
	if r == nil || !r.CheckpointDue {
		a.st.mu.Unlock()
		return nil
	}
	r.CheckpointDue = false
	pos := &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence}
	chunks := []*nusav1.CheckpointRecord{{Position: pos, Report: r.Report}}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(r.SummaryKeys)) {
		sum := a.st.summary(key, name)
		if sum == nil {
			continue
		}
		if size += proto.Size(sum); size > checkpointBytes {
			chunks = append(chunks, &nusav1.CheckpointRecord{Position: pos})
			size = proto.Size(sum)
		}
		last := chunks[len(chunks)-1]
		last.Summaries = append(last.Summaries, sum)
	}
	stored := r.chunks
	r.chunks = len(chunks)
	a.st.mu.Unlock()
	for i := range max(stored, len(chunks)) {
		key := CheckpointKey(name, i)
		_, err := a.commit.Do(ctx, func(t *Tx) error {
			rec, _ := t.Region(name)
			switch {
			case rec == nil: // removed meanwhile
				return nil
			case i >= len(chunks):
				return t.DeleteBlind(key)
			}
			chunks[i].Chunks = int32(len(chunks))
			return t.PutBlind(key, chunks[i], 0)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tickLoop does what time alone brings about, each report interval.
func (a *active) tickLoop(ctx context.Context) error {
	tick := time.NewTicker(a.cfg.ReportInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			a.tick()
			a.sendCompact()
			a.board.DropIdle(a.st.Clock())
		}
	}
}

func (a *active) tick() {
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	now := st.Clock()
	newColumns := a.columnStamp != st.matrix.stamp
	a.columnStamp = st.matrix.stamp
	// Peers carry coordinates, which drift slowly; the rest is sent at once.
	newPeers := newColumns && now-a.peersAt >= a.cfg.CheckpointInterval
	if newPeers {
		a.peersAt = now
	}
	if st.ProbeDemandStale && now-a.interestAt >= a.cfg.CheckpointInterval {
		a.interestAt = now
		st.updateInterest()
	}
	st.followBreaches(now)
	forgot := false
	for _, r := range st.Regions {
		var effects []region.Effect
		r.Life, effects = region.Step(st.RegionConfig, r.Life, now, region.Tick{})
		r.end(effects)
		kept := slices.DeleteFunc(r.Refusals, func(ret Refusal) bool { return st.RefusalExpired(ret, now) })
		forgot = forgot || len(kept) < len(r.Refusals)
		r.Refusals = kept
		if newColumns && r.Session != nil {
			r.Session.columnDirty = true
			r.Session.peersDirty = r.Session.peersDirty || newPeers
			r.Session.wake()
		}
	}
	if forgot || len(st.Pending) > 0 {
		a.wakePlacer()
	}
}

// summary answers the summary that a region's set holds under a key, nil for
// local jobs and jobs that are gone. mu is held.
func (st *State) summary(key, region string) *nusav1.JobSummary {
	namespace, name, _ := strings.Cut(key, "/")
	if j := st.Jobs[JobKey{namespace, name}]; j != nil {
		return j.Summaries[region]
	}
	return nil
}

// renewLoop extends the time until which nobody else can be elected. A failure
// is for the election to judge; meanwhile that time runs out, and no lease is
// granted after it.
func (a *active) renewLoop(ctx context.Context) error {
	tick := time.NewTicker(a.cfg.ElectionTTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := a.hold(ctx); err != nil {
			a.log.Debug("no proof of being the active server", "error", err)
		}
	}
}

// hold asks the store whether this server is still the elected one.
func (a *active) hold(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ElectionTTL)
	defer cancel()
	a.st.mu.Lock()
	request := a.election.Request(a.cfg.Clock())
	a.st.mu.Unlock()
	if err := a.renew(ctx); err != nil {
		return err
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	a.election.Granted(request, a.cfg.ElectionTTL)
	return nil
}

// keyedLock lets one holder at a time in for each key.
type keyedLock struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (l *keyedLock) lock(ctx context.Context, key string) (release func(), err error) {
	for {
		l.mu.Lock()
		if l.held == nil {
			l.held = map[string]chan struct{}{}
		}
		waiting, busy := l.held[key]
		if !busy {
			done := make(chan struct{})
			l.held[key] = done
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, key)
				close(done)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-waiting:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
