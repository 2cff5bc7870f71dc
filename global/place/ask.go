package place

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
)

// DefaultPool is the pool of asks and bins that do not name one.
const DefaultPool = "default"

// perNodeMax bounds the instances that a histogram estimates for one node and a tiny ask. A node
// has an instance quota, which the histogram does not contain.
const perNodeMax = 1000

// GPU is an ask for accelerators.
type GPU struct {
	// Count is the number of whole devices.
	Count int
	// Models are the accepted models. Empty: any model.
	Models []string
	// ShareMilli is the share of one device in thousandths, if Count is 0 or 1.
	ShareMilli int
}

// Ask holds the needs of one instance of a group: the sum over its tasks.
type Ask struct {
	CPUMilli    int64
	MemoryBytes int64
	DiskBytes   int64
	GPU         GPU
	// Pool is the pool of the nodes. Empty: DefaultPool.
	Pool string
	// Drivers, Capabilities (for example "docker/exec"), Constraints and StaticPorts are sets:
	// order and repetition do not matter.
	Drivers      []string
	Capabilities []string
	Constraints  []string
	StaticPorts  []int
	// DynamicPorts is how many ports of the node's range an instance takes.
	DynamicPorts int
	Dedicated    bool
	// Apart is a set of tags. Two instances on one node must not have a tag in common.
	Apart []string
	// Volumes is a set of folders of the node. The node's operator must allow each of them.
	Volumes []string
}

// Hash returns a number that identifies the ask: 64-bit FNV-1a over a canonical encoding. It is
// equal on every machine, and in every version that knows the same fields. It is never 0.
func (a Ask) Hash() uint64 {
	h := fnv.New64a()
	var b []byte
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	set := func(words []string) {
		if len(words) > 1 {
			words = slices.Compact(slices.Sorted(slices.Values(words)))
		}
		number(int64(len(words)))
		for _, w := range words {
			number(int64(len(w)))
			b = append(b, w...)
		}
	}
	for _, n := range []int64{a.CPUMilli, a.MemoryBytes, a.DiskBytes, int64(a.GPU.Count), int64(a.GPU.ShareMilli), int64(a.DynamicPorts)} {
		number(n)
	}
	set([]string{a.pool()})
	set(a.GPU.Models)
	set(a.Drivers)
	set(a.Constraints)
	ports := slices.Compact(slices.Sorted(slices.Values(a.StaticPorts)))
	number(int64(len(ports)))
	for _, p := range ports {
		number(int64(p))
	}
	if a.Dedicated {
		number(1)
	}
	if len(a.Capabilities) > 0 {
		set(a.Capabilities)
	}
	if len(a.Apart) > 0 {
		set([]string{"apart"}) // separates the tags from the capabilities
		set(a.Apart)
	}
	if len(a.Volumes) > 0 {
		set([]string{"volumes"})
		set(a.Volumes)
	}
	h.Write(b) // never fails
	return max(h.Sum64(), 1)
}

// Resources returns the resources that one instance is charged for.
func (a Ask) Resources() Resources {
	r := Resources{CPUMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes}
	r.GPUMilli = int64(a.GPU.Count) * 1000
	if a.GPU.Count <= 1 && a.GPU.ShareMilli > 0 {
		r.GPUMilli = int64(a.GPU.ShareMilli)
	}
	return r
}

func (a Ask) pool() string { return cmp.Or(a.Pool, DefaultPool) }

// missingDriver returns the alphabetically first driver of the ask that no node of the region has.
// It returns "" if no driver is missing, or if the region did not report its drivers.
func (r *Region) missingDriver(a Ask) string {
	first := ""
	for _, d := range a.Drivers {
		if len(r.Drivers) > 0 && !slices.Contains(r.Drivers, d) && (first == "" || d < first) {
			first = d
		}
	}
	return first
}

// fitsBins estimates how many instances fit, from a histogram of free nodes. It ignores
// constraints, drivers and models, so the result is an upper bound for asks that have them.
func (a Ask) fitsBins(bins []Bin) int {
	need, total := a.Resources(), 0
	for _, b := range bins {
		if cmp.Or(b.Pool, DefaultPool) != a.pool() {
			continue
		}
		perNode := int64(perNodeMax)
		if len(a.StaticPorts)+len(a.Apart) > 0 {
			perNode = 1
		}
		for d, n := range need.dims() {
			if n > 0 {
				perNode = min(perNode, max(0, b.Free.dims()[d])/n)
			}
		}
		total += b.Nodes * int(perNode)
	}
	return total
}

// dims returns the amounts in the order of dimNames.
func (r Resources) dims() [4]int64 {
	return [4]int64{r.CPUMilli, r.MemoryBytes, r.DiskBytes, r.GPUMilli}
}

var dimNames = [4]string{"cpu", "memory", "disk", "gpu"}

// plus returns r plus n times o.
func (r Resources) plus(o Resources, n int) Resources {
	k := int64(n)
	return Resources{
		CPUMilli:    r.CPUMilli + k*o.CPUMilli,
		MemoryBytes: r.MemoryBytes + k*o.MemoryBytes,
		DiskBytes:   r.DiskBytes + k*o.DiskBytes,
		GPUMilli:    r.GPUMilli + k*o.GPUMilli,
	}
}
