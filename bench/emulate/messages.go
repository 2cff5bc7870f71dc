package emulate

import (
	"fmt"
	"math"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// protocol is the version of the wire protocol spoken with the global tier.
	protocol = 1
	// featureLevel 1 says that the region obeys region leases, as regions of the present
	// version do.
	featureLevel = 1
	// servers is the number of servers of each region.
	servers = 3
	// samples is the number of probes that each edge reports, as after minutes of probing.
	samples = 20
)

// The capacity of a node of an emulated region, in thousandths of a CPU and in bytes.
const (
	nodeCPU    = 64_000
	nodeMemory = 256 << 30
	nodeDisk   = 4 << 40
)

// address returns a plausible address of a server. Nothing dials the address.
func address(region, server, port int) string {
	return fmt.Sprintf("10.%d.%d.%d:%d", 100+server, region>>8, region&255, port)
}

// hello returns the first message of a session. The caller holds r.mu.
func (r *region) hello() *nusav1.RegionHello {
	h := &nusav1.RegionHello{
		Definition: &nusav1.RegionDefinition{Name: r.place.Name, Location: r.place.Location, Labels: r.f.cfg.Labels},
		ClusterId:  r.epoch, Incarnation: 1, Term: 1, Master: r.place.Name + "-1", MasterAddress: address(r.n, 0, 7610),
		Orders: position(r.position), Version: "emulated", Protocol: protocol,
		FederationId: r.federation, LeadershipTerm: r.term, Fence: r.fence, StoreRevision: r.revision,
		AppliedIndex: r.applied, FeatureLevel: featureLevel, Known: r.knownSets(), Coordinate: r.coordinate,
	}
	for s := range servers {
		h.Servers = append(h.Servers, &nusav1.RegionalServer{
			Id: fmt.Sprintf("%s-%d", r.place.Name, s+1), Address: address(r.n, s, 7610), ProbeAddress: address(r.n, s, 7613),
			Leader: s == 0, Healthy: true, Version: "emulated",
		})
	}
	return h
}

// report returns the region's report. The instances count as spread evenly over equal
// nodes. The caller holds r.mu.
func (r *region) report() *nusav1.RegionReport {
	nodes := int64(r.f.cfg.Nodes)
	free := r.free()
	cpu, memory := r.reserved()
	r.reports++
	out := &nusav1.RegionReport{
		Sequence: r.reports, NodesReady: int32(nodes),
		Capacity:    &nusav1.Resources{CpuMilli: nodes * nodeCPU, MemoryBytes: nodes * nodeMemory, DiskBytes: nodes * nodeDisk},
		Free:        &nusav1.Resources{CpuMilli: nodes * free.CpuMilli, MemoryBytes: nodes * free.MemoryBytes, DiskBytes: nodes * nodeDisk},
		Allocated:   &nusav1.Resources{CpuMilli: cpu, MemoryBytes: memory},
		Utilisation: &nusav1.Utilisation{Cpu: float64(cpu) / float64(nodes*nodeCPU), Memory: float64(memory) / float64(nodes*nodeMemory)},
		Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
			{Nodes: int32(nodes), Free: free},
		}},
		SlotsRevision: r.placed, Drivers: []string{"process", "reserve"},
	}
	if r.instances > 0 {
		out.Allocations = map[string]int32{"running": int32(r.instances)}
	}
	out.Shape.Fits = r.fitCounts(r.asks)
	return out
}

// free returns the unreserved resources of each node. The caller holds r.mu.
func (r *region) free() *nusav1.Resources {
	nodes := int64(r.f.cfg.Nodes)
	cpu, memory := r.reserved()
	return &nusav1.Resources{
		CpuMilli: max(0, nodeCPU-cpu/nodes), MemoryBytes: max(0, nodeMemory-memory/nodes), DiskBytes: nodeDisk,
	}
}

// reserved returns what the slots and the region's own jobs reserve. The caller holds
// r.mu.
func (r *region) reserved() (cpuMilli, memoryBytes int64) {
	if r.f.cfg.Own == nil {
		return r.cpu, r.memory
	}
	cpu, memory := r.f.cfg.Own(r.place.Name)
	return r.cpu + cpu, r.memory + memory
}

// fitCounts returns how many more instances of each ask fit. The caller holds r.mu.
func (r *region) fitCounts(asks []*nusav1.ShapeSubscription) (out []*nusav1.FitCount) {
	free := r.free()
	for _, a := range asks {
		fit := &nusav1.FitCount{Ask: a.GetAsk(), Count: fits(a, free, int64(r.f.cfg.Nodes))}
		if fit.Count == 0 {
			fit.Reason, fit.Message = nusav1.Reason_REASON_INSUFFICIENT_CPU, "emulated nodes have less than that"
		}
		out = append(out, fit)
	}
	return out
}

// fits counts the instances of an ask that fit on equal nodes. An ask with constraints, a
// GPU, another pool or another driver than process fits nowhere.
func fits(a *nusav1.ShapeSubscription, free *nusav1.Resources, nodes int64) int32 {
	const most = 100_000
	ask := a.GetResources()
	if len(a.GetConstraints()) > 0 || ask.GetGpu() != nil || a.GetPool() != "" && a.GetPool() != "default" {
		return 0
	}
	for _, d := range a.GetDrivers() {
		if d != "process" && d != "reserve" {
			return 0
		}
	}
	each := int64(most)
	for _, of := range [][2]int64{
		{free.GetCpuMilli(), ask.GetCpuMilli()}, {free.GetMemoryBytes(), ask.GetMemoryBytes()}, {free.GetDiskBytes(), ask.GetDiskBytes()},
	} {
		if of[1] > 0 {
			each = min(each, of[0]/of[1])
		}
	}
	return int32(min(most, each*nodes))
}

// edge returns the measured edge from one place to another. Its measurement is age old.
func edge(from, to *Place, age time.Duration) topology.Edge {
	rtt := from.RTT(to)
	return topology.Edge{
		From: from.Name, To: to.Name, State: topology.OK, Source: topology.Measured, P50: rtt, P90: rtt + rtt/20, P99: rtt + rtt/5,
		Min: rtt - rtt/50, Jitter: rtt / 100, Samples: samples, Age: age, Method: "udp",
	}
}

// coordinate returns the network coordinate of a place, moved by a small share, because
// measured coordinates drift.
func coordinate(p *Place, moved float64) *nusav1.Coordinate {
	const (
		dimensions  = 8
		earth       = 0.07 // seconds; with this radius the greatest distance is about as long as in the table
		uncertainty = 0.15
		height      = 0.002
	)
	lat, lon := p.Location.GetLatitude()*math.Pi/180, p.Location.GetLongitude()*math.Pi/180
	at := [dimensions]float64{math.Cos(lat) * math.Cos(lon), math.Cos(lat) * math.Sin(lon), math.Sin(lat)}
	out := &nusav1.Coordinate{Error: uncertainty, Height: height}
	for _, v := range at {
		out.Vector = append(out.Vector, v*earth*(1+moved))
	}
	return out
}
