package expr

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

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
