package job

import (
	"cmp"
	"maps"
	"slices"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Ask holds what one instance of a group needs of a node.
type Ask struct {
	// CPUMilli, MemoryBytes and DiskBytes are sums over the group's tasks. CPUMilli is in
	// thousandths of a core.
	CPUMilli    int64
	MemoryBytes int64
	DiskBytes   int64
	// GPUCount is the number of whole GPUs. GPUShareMilli is a share of one GPU in
	// thousandths, if no whole GPU is needed.
	GPUCount      int32
	GPUShareMilli int32
	// GPUModels lists the accepted models, sorted; empty = any.
	GPUModels []string

	// Drivers lists the drivers of the tasks, sorted and unique.
	Drivers []string
	// Needs holds the capabilities that a driver must have, by the name of the driver,
	// sorted.
	Needs map[string][]string
	// Ports is sorted by label.
	Ports []PortAsk

	Pool      string
	Dedicated bool
	// Constraints are the CEL expressions of the job file. Each must be true.
	Constraints []string
	// SpreadBy is a CEL expression whose value is a string; empty = none.
	SpreadBy string
	// Affinities are the affinities of the group in the job file.
	Affinities []AffinityAsk
	// Apart holds the tags of `apart`, sorted and unique.
	Apart []string
	// Volumes lists the folders of the host that are mounted, sorted and unique.
	Volumes []string
}

// PortAsk is one port of a group.
type PortAsk struct {
	Label string
	// Static is the port on the host; 0 = any free port.
	Static int32
	// To is the port inside the task; 0 = the same as on the host.
	To int32
}

// AffinityAsk is one soft constraint.
type AffinityAsk struct {
	Expression string
	Weight     int32
}

// AskOf returns what one instance of a group needs. The group's defaults must be filled
// in.
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

// selfFencing is the capability of drivers whose tasks end by themselves when their lease
// ends. A group that a lease binds needs this capability.
const selfFencing = "self_fencing"

// wholeGPU is a whole device in thousandths.
const wholeGPU = 1000

// Capabilities returns Needs as one sorted list of texts such as "docker/exec".
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

// need adds the capabilities that the driver of a task must have.
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
	if t.GetLifecycle() != nil || t.GetLeader() || t.GetShutdownDelay().AsDuration() > 0 {
		needs = append(needs, "lifecycle")
	}
	switch g := t.GetResources().GetGpu(); {
	case g.GetShareMilli() > 0 && g.GetShareMilli() < wholeGPU:
		needs = append(needs, "gpu_share")
	case g.GetCount() > 0 || g.GetShareMilli() > 0:
		needs = append(needs, "gpu")
	}
	if t.GetKillSignal() != "" {
		needs = append(needs, "kill_signal")
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

// Resources returns the resources of the ask as a protobuf message.
func (a Ask) Resources() *nusav1.Resources {
	r := &nusav1.Resources{CpuMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes}
	if a.GPUCount > 0 || a.GPUShareMilli > 0 {
		r.Gpu = &nusav1.GPU{Count: a.GPUCount, ShareMilli: a.GPUShareMilli, Models: a.GPUModels}
	}
	return r
}

// StaticPorts returns the host ports of the ask that are fixed, sorted.
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

// DynamicPorts returns the number of host ports that the scheduler chooses.
func (a Ask) DynamicPorts() int {
	return len(a.Ports) - len(a.StaticPorts())
}

func sortedSet(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
