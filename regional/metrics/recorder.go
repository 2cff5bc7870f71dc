package metrics

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/series"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// maxStatsAge is the greatest age of statistics that count as present, in intervals at
	// which agents send them.
	maxStatsAge = 3
	// minReporting is the share of a pool's ready nodes that must have sent statistics. A
	// sum over fewer nodes, for example just after an election, would look like a drop.
	minReporting = 0.9
)

// Recorder adds a master's measurements to the Store of its server.
type Recorder struct {
	Store          *Store
	Region, Server string
	// View returns the committed state.
	View func() *state.View
	// Edges returns the measured edges to other regions.
	Edges func() []topology.Edge
	// Stats returns the latest statistics of a node, with their age at now, a time on
	// Clock. It returns false when the node has sent none.
	Stats func(nodeID string, now time.Duration) (wire.NodeStats, bool)
	Clock func() time.Duration
	// StatsInterval is how often agents send statistics.
	StatsInterval time.Duration
	Events        *eventlog.Log
	Log           *slog.Logger
}

// Run adds samples until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	warned := false
	for range wait.Ticks(ctx, series.Base) {
		store, _ := r.Store.Open()
		if store == nil {
			continue
		}
		if n := r.Store.newlyDamaged(); n > 0 {
			r.Events.Add("history.damaged", r.Region, "the history file of server %s could not be read: the file is set aside, and a new one begins", r.Server)
		}
		err := store.Append(time.Now(), r.measure())
		if err != nil && !errors.Is(err, series.ErrClosed) && !warned {
			r.Log.Warn("some measurements are not recorded", "error", err)
			warned = true
		}
	}
	return nil
}

// measure returns the present values of edges, nodes and pools.
func (r *Recorder) measure() []series.Sample {
	edges, view, now := r.Edges(), r.View(), r.Clock() // read once, because each reading is a system call
	out := make([]series.Sample, 0, len(edges)+view.NodeCount())
	for _, e := range edges {
		if e.State != topology.Unknown {
			out = append(out, series.Sample{Kind: KindEdge, Key: e.To, Values: edgeValues(e)})
		}
	}
	maxAge := maxStatsAge * max(r.StatsInterval, series.Base)
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
		if stats, known := r.Stats(n.ID, now); known && stats.Age <= maxAge {
			out = append(out, series.Sample{Kind: KindNode, Key: n.ID, Values: stats.Values()})
			sum.add(n, use.Resources, &stats)
		} else {
			sum.add(n, use.Resources, nil)
		}
	}
	for pool, sum := range pools {
		out = append(out, series.Sample{Kind: KindPool, Key: pool, Values: sum.values()})
	}
	return out
}

// edgeValues returns the values of an edge. Round trips are NaN while no replies arrive.
func edgeValues(e topology.Edge) []float64 {
	ms := func(d time.Duration) float64 {
		if e.State != topology.OK {
			return math.NaN()
		}
		return float64(d) / float64(time.Millisecond)
	}
	return []float64{ms(e.P50), ms(e.P90), ms(e.P99), ms(e.Min), ms(e.Jitter), e.Loss}
}

// poolSum adds up the ready nodes of a pool.
type poolSum struct {
	nodes, reporting    int
	machines            map[string]bool // the shared machines that are already in the sums
	cpu, cores          float64         // cpu is weighted by cores
	memory, memoryTotal float64
	disk, diskTotal     float64
	allocated, capacity state.Resources
}

// add adds a node. stats is nil when the node has sent no statistics lately.
func (p *poolSum) add(n *state.Node, allocated state.Resources, stats *wire.NodeStats) {
	p.nodes++
	p.allocated, p.capacity = p.allocated.Add(allocated), p.capacity.Add(n.Capacity)
	if stats == nil {
		return
	}
	p.reporting++
	weight := float64(n.Capacity.CPUMilli)
	p.cpu, p.cores = p.cpu+stats.CPU*weight, p.cores+weight
	if n.SharedMachine != "" {
		if p.machines[n.SharedMachine] {
			return // another agent sent the same memory and disks
		}
		p.machines[n.SharedMachine] = true
	}
	p.memory += stats.MemoryUsed
	p.memoryTotal += stats.MemoryUsed + stats.MemoryAvailable
	p.disk, p.diskTotal = p.disk+stats.DiskUsed, p.diskTotal+stats.DiskTotal
}

func (p *poolSum) values() []float64 {
	known := float64(p.reporting) >= minReporting*float64(p.nodes)
	valueOf := func(v, whole float64) float64 {
		if !known || whole <= 0 {
			return math.NaN()
		}
		return v
	}
	return []float64{
		float64(p.nodes), valueOf(p.cpu/p.cores, p.cores),
		valueOf(p.memory, p.memoryTotal), valueOf(p.memoryTotal, p.memoryTotal), valueOf(p.disk, p.diskTotal), valueOf(p.diskTotal, p.diskTotal),
		float64(p.allocated.CPUMilli) / 1000, float64(p.capacity.CPUMilli) / 1000,
		float64(p.allocated.MemoryBytes), float64(p.capacity.MemoryBytes),
	}
}
