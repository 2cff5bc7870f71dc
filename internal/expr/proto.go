package expr

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const mebibyte = 1 << 20

// NodeFromProto returns the node that expressions see. Unhealthy drivers are left out.
func NodeFromProto(n *nusav1.Node) *Node {
	inv := n.GetInventory()
	out := &Node{
		ID: n.GetId(), Name: n.GetName(), Region: n.GetRegion(),
		Pool:    inv.GetPool(),
		CPU:     float64(inv.GetCapacity().GetCpuMilli()) / 1000,
		Memory:  inv.GetCapacity().GetMemoryBytes() / mebibyte,
		Disk:    inv.GetCapacity().GetDiskBytes() / mebibyte,
		Arch:    inv.GetFacts().GetArch(),
		OS:      inv.GetFacts().GetOs(),
		Kernel:  inv.GetFacts().GetKernel(),
		Version: inv.GetVersion(),
		Labels:  inv.GetLabels(),
	}
	for _, d := range inv.GetDrivers() {
		if d.GetHealthy() {
			out.Drivers = append(out.Drivers, d.GetName())
		}
	}
	for _, g := range inv.GetGpus() {
		out.GPUs = append(out.GPUs, g.GetModel())
	}
	return out
}

// JobFromProto returns the job that conditions see.
func JobFromProto(spec *nusav1.JobSpec) *Job {
	out := &Job{
		Namespace: spec.GetNamespace(), Name: spec.GetName(), Labels: spec.GetLabels(), Priority: int64(spec.GetPriority()),
		Type: strings.ToLower(strings.TrimPrefix(spec.GetType().String(), "JOB_TYPE_")),
	}
	for _, name := range slices.Sorted(maps.Keys(spec.GetGroups())) {
		out.Groups = append(out.Groups, groupFromProto(name, spec.GetGroups()[name], spec))
	}
	return out
}

func groupFromProto(name string, g *nusav1.Group, spec *nusav1.JobSpec) Group {
	out := Group{Name: name, Count: int64(g.GetCount()), Pool: g.GetPool(), Dedicated: g.GetDedicated(), Constraints: g.GetConstraints()}
	regions := g.GetRegions()
	if regions == nil {
		regions = spec.GetRegions()
	}
	for _, r := range regions.GetAllow() {
		out.Regions = append(out.Regions, r.GetName())
	}
	for _, name := range slices.Sorted(maps.Keys(g.GetVolumes())) {
		v := g.GetVolumes()[name]
		out.Volumes = append(out.Volumes, Volume{Name: name, Source: v.GetSource(), ReadOnly: v.GetReadOnly()})
	}
	for _, name := range slices.Sorted(maps.Keys(g.GetPorts())) {
		if port := g.GetPorts()[name].GetStatic(); port != 0 {
			out.StaticPorts = append(out.StaticPorts, int64(port))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.GetTasks())) {
		t := g.GetTasks()[name]
		config := t.GetConfig()
		if config == nil {
			config = &structpb.Struct{}
		}
		out.Tasks = append(out.Tasks, Task{
			Name: name, Driver: t.GetDriver(), Config: config, Env: t.GetEnv(), Secrets: t.GetSecrets(),
			CPU: float64(t.GetResources().GetCpuMilli()) / 1000, Memory: t.GetResources().GetMemoryBytes() / mebibyte,
		})
	}
	return out
}
