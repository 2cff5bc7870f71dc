package job

import (
	"cmp"
	"maps"
	"slices"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Ask holds the needs of one instance of a group.
type Ask struct {
	// Sums over the group's tasks.
	CPUMilli    int64
	MemoryBytes int64
	DiskBytes   int64
	// GPUCount counts whole devices; GPUShareMilli is thousandths of one device when
	// no whole device is needed.
	GPUCount      int32
	GPUShareMilli int32
	// GPUModels are the accepted models, sorted; empty for any.
	GPUModels []string

	// Drivers of the tasks, sorted and unique.
	Drivers []string
	// Needs has the capabilities that a driver must have, sorted, by its name.
	Needs map[string][]string
	// Ports sorted by label.
	Ports []PortAsk

	Pool      string
	Dedicated bool
	// Constraints are CEL as written; each must be true.
	Constraints []string
	// SpreadBy is CEL that gives a string; empty for none.
	SpreadBy string
	// Affinities as written.
	Affinities []AffinityAsk
	// Apart has tags, sorted and unique.
	Apart []string
	// Volumes has the folders of the host that are mounted, sorted and unique.
	Volumes []string
}

// PortAsk is one port of a group.
type PortAsk struct {
	Label string
	// Static is the host port; 0 for any.
	Static int32
	// To is the port inside the task; 0 for the host port.
	To int32
}

// AffinityAsk is one soft constraint.
type AffinityAsk struct {
	Expression string
	Weight     int32
}

// AskOf returns what one instance of a defaulted group needs.
func AskOf(g *nusav1.Group) Ask {
	a := Ask{
		Pool: cmp.Or(g.GetPool(), DefaultPool), Dedicated: g.GetDedicated(),
		Constraints: slices.Clone(g.GetConstraints()), SpreadBy: g.GetSpread().GetBy(),
	}
	for _, name := range slices.Sorted(maps.Keys(g.GetTasks())) {
		t := g.GetTasks()[name]
		r := t.GetResources()
		a.CPUMilli += r.GetCpuMilli()
		a.MemoryBytes += r.GetMemoryBytes()
		a.DiskBytes += r.GetDiskBytes()
		a.GPUCount += r.GetGpu().GetCount()
		a.GPUShareMilli += r.GetGpu().GetShareMilli()
		a.GPUModels = append(a.GPUModels, r.GetGpu().GetModels()...)
		a.Drivers = append(a.Drivers, t.GetDriver())
		a.need(t, g)
	}
	for d := range a.Needs {
		a.Needs[d] = sortedSet(a.Needs[d])
	}
	a.Drivers = sortedSet(a.Drivers)
	a.Apart = sortedSet(slices.Clone(g.GetApart()))
	for _, v := range g.GetVolumes() {
		a.Volumes = append(a.Volumes, v.GetSource())
	}
	a.Volumes = sortedSet(a.Volumes)
	a.GPUModels = sortedSet(a.GPUModels)
	for _, label := range slices.Sorted(maps.Keys(g.GetPorts())) {
		p := g.GetPorts()[label]
		a.Ports = append(a.Ports, PortAsk{Label: label, Static: p.GetStatic(), To: p.GetTo()})
	}
	for _, f := range g.GetAffinities() {
		a.Affinities = append(a.Affinities, AffinityAsk{f.GetExpression(), f.GetWeight()})
	}
	return a
}

// selfFencing is the capability of drivers whose tasks end by themselves when their
// lease ends. A group that a lease binds needs it.
const selfFencing = "self_fencing"

// Capabilities returns the needs as one sorted list: "docker/exec".
func (a Ask) Capabilities() []string {
	var out []string
	for d, needs := range a.Needs {
		for _, n := range needs {
			out = append(out, d+"/"+n)
		}
	}
	slices.Sort(out)
	return out
}

// need adds the capabilities that a task needs of its driver.
func (a *Ask) need(t *nusav1.Task, g *nusav1.Group) {
	var needs []string
	for _, v := range g.GetVolumes() {
		needs = append(needs, "volumes")
		if v.GetReadOnly() || v.GetTarget() != "" {
			needs = append(needs, "mounts")
		}
	}
	if len(t.GetSecrets()) > 0 {
		needs = append(needs, "secrets")
	}
	if t.GetDriver() == "process" && ProcessConfigOf(t).User != "" {
		needs = append(needs, "user")
	}
	if t.GetCheck().GetCommand() != nil {
		needs = append(needs, "exec")
	}
	if bound(g) {
		needs = append(needs, selfFencing)
	}
	if len(needs) == 0 {
		return
	}
	if a.Needs == nil {
		a.Needs = map[string][]string{}
	}
	a.Needs[t.GetDriver()] = append(a.Needs[t.GetDriver()], needs...)
}

// Resources returns the amounts of the ask as a message.
func (a Ask) Resources() *nusav1.Resources {
	r := &nusav1.Resources{CpuMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes}
	if a.GPUCount > 0 || a.GPUShareMilli > 0 {
		r.Gpu = &nusav1.GPU{Count: a.GPUCount, ShareMilli: a.GPUShareMilli, Models: a.GPUModels}
	}
	return r
}

// StaticPorts returns the fixed host ports of the ask, sorted.
func (a Ask) StaticPorts() []int32 {
	var out []int32
	for _, p := range a.Ports {
		if p.Static != 0 {
			out = append(out, p.Static)
		}
	}
	slices.Sort(out)
	return out
}

// DynamicPorts returns the number of host ports beside the static ones.
func (a Ask) DynamicPorts() int {
	return len(a.Ports) - len(a.StaticPorts())
}

func sortedSet(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
