package region

import (
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The inventory and the statistics of a simulated node are as large as those of a real
// agent on a common server, because their size costs the region memory and CPU time.

// Names in the jobs, the resources of one instance in thousandths of a CPU and in bytes,
// and the number of racks on which the nodes are.
const (
	taskName  = "main"
	groupName = "g"
	askCPU    = 100
	askMemory = 64 << 20
	racks     = 40
)

func (f *fleet) nodeID(n int) string  { return fmt.Sprintf("%s-0000-4000-8000-%012d", f.prefix, n) }
func (f *fleet) name(n int) string    { return fmt.Sprintf("%s-%05d", f.prefix, n) }
func (f *fleet) storeID(n int) string { return fmt.Sprintf("%s-store-%d", f.prefix, n) }

func address(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }

// inventory returns the inventory of node n. Each call makes a new one, so that thousands
// of inventories do not stay in memory.
func (f *fleet) inventory(n int) *nusav1.NodeInventory {
	return &nusav1.NodeInventory{
		Capacity: f.capacity, Pool: f.prefix,
		Labels:  map[string]string{"rack": fmt.Sprintf("r%02d", n%racks), "zone": fmt.Sprintf("z%d", n%3), "disk": "ssd"},
		Drivers: []*nusav1.DriverInfo{{Name: "process", Healthy: true, Version: "1", Capabilities: []string{"self_fencing", "exec", "cpu_limit", "memory_limit"}}},
		PortMin: 20000, PortMax: 32000, Version: "bench",
		Facts: &nusav1.HostFacts{
			Hostname: fmt.Sprintf("node-%05d.example.org", n), Os: "linux", Platform: "debian", PlatformVersion: "13.1",
			Kernel: "6.12.48+deb13-amd64", Arch: "x86_64", Virtualization: "kvm",
			CpuCores: 64, CpuPhysicalCores: 32, CpuModel: "AMD EPYC 7543 32-Core Processor", CpuMhz: 2800, CpuCacheKib: 512,
			MemoryBytes: 256 << 30,
			Disks: []*nusav1.DiskFacts{
				{Device: "/dev/nvme0n1p2", Mount: "/", FsType: "ext4", TotalBytes: 480 << 30},
				{Device: "/dev/nvme1n1", Mount: "/srv", FsType: "xfs", TotalBytes: 4 << 40},
			},
			Networks: []*nusav1.NetworkFacts{
				{Name: "eth0", Addresses: []string{address(n) + "/16", fmt.Sprintf("fe80::%x/64", n)}, Mac: fmt.Sprintf("02:00:00:%02x:%02x:%02x", n>>16&255, n>>8&255, n&255), Mtu: 9000},
			},
		},
	}
}

// sampleStats returns the statistics that every simulated node sends.
func sampleStats() *nusav1.NodeStats {
	cores := make([]float64, 64)
	for i := range cores {
		cores[i] = 0.25
	}
	return &nusav1.NodeStats{
		Cpu: 0.25, CpuPerCore: cores, MemoryUsedBytes: 64 << 30, MemoryAvailableBytes: 192 << 30,
		Disks:    []*nusav1.DiskStats{{Mount: "/", UsedBytes: 48 << 30, TotalBytes: 480 << 30}, {Mount: "/srv", UsedBytes: 1 << 40, TotalBytes: 4 << 40}},
		Networks: []*nusav1.NetworkStats{{Name: "eth0", BytesIn: 1 << 40, BytesOut: 1 << 39, PacketsIn: 1 << 32, PacketsOut: 1 << 31, InPerSecond: 1e6, OutPerSecond: 1e6}},
		Load1:    16, Load5: 16, Load15: 16, Uptime: durationpb.New(1000 * 3600 * 1e9),
	}
}

// groups returns the groups of a job with count instances. All jobs ask for the same
// resources. pool is the pool of the simulated nodes, which no other job uses; "" is the
// default pool.
func groups(count int, pool string) map[string]*nusav1.Group {
	n := int32(count)
	config, err := structpb.NewStruct(map[string]any{"command": "/bin/sleep", "args": []any{"86400"}})
	if err != nil {
		panic(err) // cannot fail: the values are constants
	}
	return map[string]*nusav1.Group{groupName: {
		Count: &n, Pool: pool,
		Tasks: map[string]*nusav1.Task{taskName: {
			Driver: "process", Config: config, Resources: &nusav1.Resources{CpuMilli: askCPU, MemoryBytes: askMemory},
		}},
	}}
}
