package regional

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

// Kinds of what is measured over time, with the name of another region, the id
// of a node and the name of a pool as keys.
const (
	kindEdge = "edge"
	kindNode = "node"
	kindPool = "pool"
)

// historyKinds are the fields of each kind. Memory and disk are bytes, networks
// bytes a second, the cpu of a node or pool 0..1 of its cores, that of
// allocations and capacities cores. A node's disk is its fullest file system,
// a pool's are all of them. Capacities are what is offered to the scheduler.
var historyKinds = []series.Kind{
	{Name: kindEdge, Fields: []string{"p50_ms", "p90_ms", "p99_ms", "min_ms", "jitter_ms", "loss"}},
	{Name: kindNode, Fields: []string{
		"cpu", "load1", "memory_used", "memory_available", "disk_used", "disk_total", "network_in", "network_out", "tasks",
	}},
	{Name: kindPool, Fields: []string{
		"nodes", "cpu", "memory_used", "memory_total", "disk_used", "disk_total",
		"allocated_cpu", "capacity_cpu", "allocated_memory", "capacity_memory",
	}},
}

const (
	// statsFresh is how many intervals of statistics the latest may be old to
	// count as what is measured now.
	statsFresh = 3
	// poolHeard is the share of a pool's ready nodes that must have told how
	// they are: a sum over few, such as just after an election, would look like
	// a fall.
	poolHeard = 0.9
)

// keeper holds what this server measured over time while it was the master. It
// is a file of its own on each server: a new master goes on with what it has
// from its own earlier offices. Nothing here stops a server or makes it wait.
type keeper struct {
	mu    sync.Mutex
	store *series.Store // nil while there is none
	why   string        // there is none
	told  uint64        // damaged files that an event was made of
}

// damaged answers how many files were found damaged and set aside since the last
// time.
func (k *keeper) damaged() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	aside := uint64(k.store.Stats().SetAside)
	fresh := aside - min(k.told, aside)
	k.told = aside
	return int(fresh)
}

// use is the store, nil and the reason where there is none.
func (k *keeper) use() (*series.Store, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.store, k.why
}

func (k *keeper) set(store *series.Store, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.store, k.why = store, why
}

// keepHistory opens the file and closes it when ctx ends. Opening may take a
// while, such as where a bound was lowered, so nobody waits for it.
func (s *server) keepHistory(ctx context.Context) error {
	switch {
	case s.dir == nil:
		s.history.set(nil, "this server keeps nothing on disk, and so no history")
	case s.cfg.HistoryBytes < 0:
		s.history.set(nil, "history is turned off on this server")
	default:
		s.openHistory()
	}
	<-ctx.Done()
	store, _ := s.history.use()
	s.history.set(nil, "this server stops")
	if err := store.Close(); err != nil {
		s.cfg.Logger.Warn("the last minute of history was not written", "error", err)
	}
	return nil
}

func (s *server) openHistory() {
	limits := series.Limits{Series: s.cfg.HistorySeries, Bytes: s.cfg.HistoryBytes}
	store, err := series.Open(s.dir.Path("history", "series.db"), historyKinds, limits, s.cfg.Logger)
	if err != nil {
		s.cfg.Logger.Warn("no history is kept", "error", err)
		s.history.set(nil, err.Error())
		return
	}
	s.history.set(store, "")
}

// record appends what is measured to the history, until ctx ends.
func (l *leader) record(ctx context.Context) error {
	tick := time.NewTicker(series.Base)
	defer tick.Stop()
	warned := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		store, _ := l.s.history.use()
		if store == nil {
			continue
		}
		if n := l.s.history.damaged(); n > 0 {
			l.events.Add("history.damaged", l.s.cfg.Region.GetName(), "the file of server %s could not be read: it is set aside, history begins anew", l.s.cfg.Name)
		}
		err := store.Append(time.Now(), l.measure())
		if err != nil && !errors.Is(err, series.ErrClosed) && !warned {
			l.log.Warn("some of what is measured is not kept", "error", err)
			warned = true
		}
	}
}

// measure is what the master knows now of edges, nodes and pools.
func (l *leader) measure() []series.Sample {
	edges, view, now := l.prober.Edges(), l.s.fsm.View(), l.s.cfg.Clock()
	out := make([]series.Sample, 0, len(edges)+view.NodeCount())
	for _, e := range edges {
		if e.State != topology.Unknown {
			out = append(out, series.Sample{Kind: kindEdge, Key: e.To, Values: edgeValues(e)})
		}
	}
	fresh := statsFresh * max(l.s.cfg.StatsInterval, series.Base)
	pools := map[string]*poolSum{}
	for n, use := range view.NodesInUse() {
		if n.Status != state.NodeReady {
			continue
		}
		sum := pools[n.Pool]
		if sum == nil {
			sum = &poolSum{machines: map[string]bool{}}
			pools[n.Pool] = sum
		}
		if stats, told := l.agents.statsOf(n.ID, now); told && stats.Age <= fresh {
			out = append(out, series.Sample{Kind: kindNode, Key: n.ID, Values: stats.Values()})
			sum.add(n, use.Resources, &stats)
		} else {
			sum.add(n, use.Resources, nil)
		}
	}
	for pool, sum := range pools {
		out = append(out, series.Sample{Kind: kindPool, Key: pool, Values: sum.values()})
	}
	return out
}

// edgeValues are an edge's; round trips only while there are answers.
func edgeValues(e topology.Edge) []float64 {
	ms := func(d time.Duration) float64 {
		if e.State != topology.OK {
			return math.NaN()
		}
		return float64(d) / float64(time.Millisecond)
	}
	return []float64{ms(e.P50), ms(e.P90), ms(e.P99), ms(e.Min), ms(e.Jitter), e.Loss}
}

// poolSum adds the ready nodes of a pool up.
type poolSum struct {
	nodes, heard        int
	machines            map[string]bool // shared ones, counted once
	cpu, cores          float64         // cpu weighted by cores
	memory, memoryAll   float64
	disk, diskAll       float64
	allocated, capacity state.Resources
}

// add takes a node in; stats are nil where it has not told lately.
func (p *poolSum) add(n *state.Node, charged state.Resources, stats *wire.NodeStats) {
	p.nodes++
	p.allocated, p.capacity = p.allocated.Add(charged), p.capacity.Add(n.Capacity)
	if stats == nil {
		return
	}
	p.heard++
	weight := float64(n.Capacity.CPUMilli)
	p.cpu, p.cores = p.cpu+stats.CPU*weight, p.cores+weight
	if n.SharedMachine != "" {
		if p.machines[n.SharedMachine] {
			return // another agent told of the same memory and disks
		}
		p.machines[n.SharedMachine] = true
	}
	p.memory += stats.MemoryUsed
	p.memoryAll += stats.MemoryUsed + stats.MemoryAvailable
	p.disk, p.diskAll = p.disk+stats.DiskUsed, p.diskAll+stats.DiskTotal
}

func (p *poolSum) values() []float64 {
	known := float64(p.heard) >= poolHeard*float64(p.nodes)
	of := func(v, whole float64) float64 {
		if !known || whole <= 0 {
			return math.NaN()
		}
		return v
	}
	return []float64{
		float64(p.nodes), of(share(p.cpu, p.cores), p.cores),
		of(p.memory, p.memoryAll), of(p.memoryAll, p.memoryAll), of(p.disk, p.diskAll), of(p.diskAll, p.diskAll),
		float64(p.allocated.CPUMilli) / 1000, float64(p.capacity.CPUMilli) / 1000,
		float64(p.allocated.MemoryBytes), float64(p.capacity.MemoryBytes),
	}
}
