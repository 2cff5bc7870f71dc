package federation

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// namespace holds every job of a measurement.
	namespace = "default"
	groupName = "g"
	taskName  = "main"
	// label is the label of the emulated regions in a running federation.
	label = "nusa-bench"
	// askCPU and askMemory are what an instance of the smallest job reserves, in
	// thousandths of a CPU and in bytes. Other jobs reserve up to sizes times askCPU and
	// up to memories times askMemory.
	askCPU, sizes       = 100, 4
	askMemory, memories = 64 << 20, 2
	// nearBound is max_rtt of a job's near rule.
	nearBound = 60 * time.Millisecond
	// node is the CPU of a node of an emulated region, in thousandths of a core.
	node = 64_000
)

// kind says what a job asks of regions.
type kind int

const (
	// anywhere: one instance in any region. near: one instance, preferably within
	// nearBound of a region. nearRequired: one instance that must be within nearBound of a
	// region. spread: one instance in each of three regions.
	anywhere kind = iota
	near
	nearRequired
	spread
)

// kindOf returns the kind of job number i. A sixth of the jobs is near, a sixth
// nearRequired, a sixth spread, and half is anywhere.
func kindOf(i int) kind {
	switch i % 6 {
	case 1:
		return near
	case 4:
		return nearRequired
	case 0:
		return spread
	}
	return anywhere
}

// jobSet makes the specs of jobs whose names have the same prefix.
type jobSet struct {
	prefix  string
	regions []string
	// only is the value of label in the regions that the jobs may use; empty = any region.
	only string
	// groups holds the groups of a job by size and count.
	groups map[[2]int]map[string]*nusav1.Group
}

func newJobSet(prefix string, regions []string, only string) *jobSet {
	s := &jobSet{prefix: prefix, regions: regions, only: only, groups: map[[2]int]map[string]*nusav1.Group{}}
	for size := range sizes * memories {
		for _, count := range []int{1, s.spreadOver()} {
			s.groups[[2]int{size, count}] = group(size, count)
		}
	}
	return s
}

// spreadOver returns how many regions a spread job uses. The job has as many instances.
func (s *jobSet) spreadOver() int { return min(3, len(s.regions)) }

// count returns the number of instances of job number i. Each instance has its own slot.
func (s *jobSet) count(i int) int {
	if kindOf(i) == spread {
		return s.spreadOver()
	}
	return 1
}

func (s *jobSet) name(i int) string { return fmt.Sprintf("%s%07d", s.prefix, i) }

// index returns the number of a job of this set; false for the name of another job.
func (s *jobSet) index(name string) (int, bool) {
	digits, ours := strings.CutPrefix(name, s.prefix)
	if !ours {
		return 0, false
	}
	i, err := strconv.Atoi(digits)
	return i, err == nil && i >= 0
}

// sizeOf returns the size of job number i, 0 ≤ size < sizes·memories.
func sizeOf(i int) int { return i / 6 % (sizes * memories) }

// ask returns what an instance of a size reserves.
func ask(size int) (cpuMilli, memoryBytes int64) {
	return int64(askCPU * (1 + size%sizes)), int64(askMemory * (1 + size/sizes))
}

// nodesFor returns the number of nodes of each region. The CPUs suffice for four times an
// even share of the instances if all had the largest size, so no region becomes full.
func nodesFor(jobs, regions int) int {
	const least, room, most = 20, 4, askCPU * sizes
	return max(least, jobs*4/3*most*room/regions/node)
}

func (s *jobSet) spec(i int) *nusav1.JobSpec {
	out := &nusav1.JobSpec{
		Name: s.name(i), Namespace: namespace, Type: nusav1.JobType_JOB_TYPE_SERVICE,
		Groups: s.groups[[2]int{sizeOf(i), s.count(i)}],
	}
	where := &nusav1.RegionsSpec{}
	switch k := kindOf(i); k {
	case near, nearRequired:
		target := s.regions[i/6*7919%len(s.regions)]
		where.Near = []*nusav1.Near{{
			Selector: &nusav1.RegionSelector{Name: target}, MaxRtt: durationpb.New(nearBound), Required: k == nearRequired,
		}}
	case spread:
		n := int32(s.spreadOver())
		where.Spread, where.Divide = &nusav1.RegionSpread{Min: n, Max: n}, nusav1.Divide_DIVIDE_EVEN
	}
	if s.only != "" {
		where.Allow = []*nusav1.RegionSelector{{Labels: map[string]string{label: s.only}}}
	}
	if s.only != "" || len(where.Near) > 0 || where.Spread != nil {
		out.Regions = where
	}
	return out
}

func group(size, count int) map[string]*nusav1.Group {
	n := int32(count)
	config, err := structpb.NewStruct(map[string]any{"command": "/bin/sleep", "args": []any{"86400"}})
	if err != nil {
		panic(err) // cannot fail: the values are constants
	}
	cpu, memory := ask(size)
	return map[string]*nusav1.Group{groupName: {
		Count: &n,
		Tasks: map[string]*nusav1.Task{taskName: {
			Driver: "process", Config: config, Resources: &nusav1.Resources{CpuMilli: cpu, MemoryBytes: memory},
		}},
	}}
}
