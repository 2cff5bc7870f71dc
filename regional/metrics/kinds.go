package metrics

import "github.com/nusa-scheduler/nusa/internal/series"

// Kinds of series. The keys are the name of another region, the id of a node
// and the name of a pool.
const (
	KindEdge = "edge"
	KindNode = "node"
	KindPool = "pool"
)

// Kinds lists the fields of each kind. Memory and disk are in bytes, networks in
// bytes a second. The cpu of a node or pool is 0..1 of its cores, that of
// allocations and capacities is in cores. The disk of a node is its fullest file
// system, that of a pool is the sum of all. Capacities are what is offered to
// the scheduler.
var Kinds = []series.Kind{
	{Name: KindEdge, Fields: []string{"p50_ms", "p90_ms", "p99_ms", "min_ms", "jitter_ms", "loss"}},
	{Name: KindNode, Fields: []string{
		"cpu", "load1", "memory_used", "memory_available", "disk_used", "disk_total", "network_in", "network_out", "tasks",
	}},
	{Name: KindPool, Fields: []string{
		"nodes", "cpu", "memory_used", "memory_total", "disk_used", "disk_total",
		"allocated_cpu", "capacity_cpu", "allocated_memory", "capacity_memory",
	}},
}
