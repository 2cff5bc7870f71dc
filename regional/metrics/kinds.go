package metrics

import "github.com/nusa-scheduler/nusa/internal/series"

// The kinds of series. The key of a KindEdge series is the name of the other region, of a
// KindNode series the id of the node, of a KindPool series the name of the pool.
const (
	KindEdge = "edge"
	KindNode = "node"
	KindPool = "pool"
)

// Kinds lists the fields of each kind. Memory and disk are in bytes, networks in bytes a
// second. The field cpu of a node or pool is the used share of its cores, 0..1. The fields
// allocated_cpu and capacity_cpu are in cores. The disk of a node is its fullest file
// system. The disk of a pool is the sum over its nodes. Capacities are those that the
// scheduler may use.
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
