package facts

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/net"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Source returns facts about a host. Callers share the results and must not change them.
// Both functions are safe for concurrent use. They are cheap, also if many agents of one
// process call them.
type Source struct {
	// Static returns the facts that rarely change.
	Static func(ctx context.Context) (*nusav1.HostFacts, error)
	// Stats returns the present load. It leaves NodeStats.tasks to the agent.
	Stats func(ctx context.Context) (*nusav1.NodeStats, error)
}

const (
	// staticFor and statsFor are how long a result is shared. statsFor is a little shorter
	// than the interval of reports, so that a single agent always gets a new result.
	staticFor = 20 * time.Second
	statsFor  = 4 * time.Second
	// maxDevices bounds the disks and the networks that are reported.
	maxDevices = 32
)

// Host returns a source for this machine that uses gopsutil. Share one source among
// the agents of a process.
func Host() Source {
	s := &sampler{}
	return Source{Static: s.static, Stats: s.stats}
}

// sampler holds the latest results, and the counters from which rates are computed.
type sampler struct {
	mu sync.Mutex

	facts   *nusav1.HostFacts
	factsAt time.Time

	latest   *nusav1.NodeStats
	latestAt time.Time
	counters map[string]net.IOCountersStat
	cpus     []cpu.TimesStat
}

func (s *sampler) static(ctx context.Context) (*nusav1.HostFacts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.facts != nil && time.Since(s.factsAt) < staticFor {
		return s.facts, nil
	}
	f, err := readStatic(ctx)
	if err != nil {
		return nil, err
	}
	// The processor's model does not change, but its clock rate does. Retain the first
	// reading, so that the facts stay equal.
	if s.facts != nil && s.facts.CpuModel == f.CpuModel {
		f.CpuMhz = s.facts.CpuMhz
	}
	s.facts, s.factsAt = f, time.Now()
	return f, nil
}

// readStatic reads the static facts. A value that the host does not report stays empty.
// Without cores or memory it returns an error, because the node has then nothing to offer.
func readStatic(ctx context.Context) (*nusav1.HostFacts, error) {
	f := &nusav1.HostFacts{}
	if h, err := host.InfoWithContext(ctx); err == nil {
		f.Hostname, f.Os, f.Platform, f.PlatformVersion = h.Hostname, h.OS, h.Platform, h.PlatformVersion
		f.Kernel, f.Arch, f.Virtualization = h.KernelVersion, h.KernelArch, h.VirtualizationSystem
		f.BootTime = timestamppb.New(time.Unix(int64(h.BootTime), 0))
	}
	cores, err := cpu.CountsWithContext(ctx, true)
	if err != nil || cores < 1 {
		return nil, fmt.Errorf("count the processor's cores: %w", errors.Join(err, ctx.Err()))
	}
	f.CpuCores = int32(cores)
	if n, err := cpu.CountsWithContext(ctx, false); err == nil {
		f.CpuPhysicalCores = int32(n)
	}
	if infos, err := cpu.InfoWithContext(ctx); err == nil && len(infos) > 0 {
		f.CpuModel, f.CpuMhz, f.CpuCacheKib = infos[0].ModelName, math.Round(infos[0].Mhz), int64(infos[0].CacheSize)
	}
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("size of the memory: %w", err)
	}
	f.MemoryBytes = int64(m.Total)
	if sw, err := mem.SwapMemoryWithContext(ctx); err == nil {
		f.SwapBytes = int64(sw.Total)
	}
	for _, p := range partitions(ctx) {
		if u, err := disk.UsageWithContext(ctx, p.Mountpoint); err == nil {
			f.Disks = append(f.Disks, &nusav1.DiskFacts{Device: p.Device, Mount: p.Mountpoint, FsType: p.Fstype, TotalBytes: int64(u.Total)})
		}
	}
	if ifs, err := net.InterfacesWithContext(ctx); err == nil {
		slices.SortFunc(ifs, func(a, b net.InterfaceStat) int { return strings.Compare(a.Name, b.Name) })
		for _, i := range ifs[:min(len(ifs), maxDevices)] {
			n := &nusav1.NetworkFacts{Name: i.Name, Mac: i.HardwareAddr, Mtu: int32(i.MTU)}
			for _, a := range i.Addrs {
				n.Addresses = append(n.Addresses, a.Addr)
			}
			f.Networks = append(f.Networks, n)
		}
	}
	return f, nil
}

// partitions returns the mounted disks, each with one of its mounts, sorted. If it finds
// none, as in a container, it returns the root.
func partitions(ctx context.Context) []disk.PartitionStat {
	all, err := disk.PartitionsWithContext(ctx, false)
	if err != nil || len(all) == 0 {
		return []disk.PartitionStat{{Device: "root", Mountpoint: "/", Fstype: ""}}
	}
	slices.SortFunc(all, func(a, b disk.PartitionStat) int { return strings.Compare(a.Mountpoint, b.Mountpoint) })
	var out []disk.PartitionStat
	seen := map[string]bool{}
	for _, p := range all {
		if !seen[p.Device] && len(out) < maxDevices {
			seen[p.Device] = true
			out = append(out, p)
		}
	}
	return out
}

func (s *sampler) stats(ctx context.Context) (*nusav1.NodeStats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.latest != nil && now.Sub(s.latestAt) < statsFor {
		return s.latest, nil
	}
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("use of the memory: %w", err)
	}
	st := &nusav1.NodeStats{MemoryUsedBytes: int64(m.Used), MemoryAvailableBytes: int64(m.Available)}
	if sw, err := mem.SwapMemoryWithContext(ctx); err == nil {
		st.SwapUsedBytes = int64(sw.Used)
	}
	s.measureCPU(ctx, st)
	for _, p := range partitions(ctx) {
		if u, err := disk.UsageWithContext(ctx, p.Mountpoint); err == nil {
			st.Disks = append(st.Disks, &nusav1.DiskStats{Mount: p.Mountpoint, UsedBytes: int64(u.Used), TotalBytes: int64(u.Total)})
		}
	}
	if err := s.measureNetworks(ctx, st, now); err != nil {
		return nil, err
	}
	if l, err := load.AvgWithContext(ctx); err == nil {
		st.Load1, st.Load5, st.Load15 = l.Load1, l.Load5, l.Load15
	}
	if up, err := host.UptimeWithContext(ctx); err == nil {
		st.Uptime = durationpb.New(time.Duration(up) * time.Second)
	}
	s.latest, s.latestAt = st, now
	return st, nil
}

// measureCPU sets the CPU use since the previous sample. The first sample has the use since
// boot.
func (s *sampler) measureCPU(ctx context.Context, st *nusav1.NodeStats) {
	times, err := cpu.TimesWithContext(ctx, true)
	if err != nil || len(times) == 0 {
		return
	}
	var sum float64
	for i, t := range times {
		var before cpu.TimesStat
		if i < len(s.cpus) {
			before = s.cpus[i]
		}
		use := busy(before, t)
		sum += use
		st.CpuPerCore = append(st.CpuPerCore, use)
	}
	st.Cpu = sum / float64(len(times))
	s.cpus = times
}

// busy returns the share of the time between two readings in which a core was not idle,
// 0..1. It does not add guest time, because user time includes guest time (proc_stat(5)).
func busy(from, to cpu.TimesStat) float64 {
	total := func(t cpu.TimesStat) float64 {
		return t.User + t.System + t.Nice + t.Idle + t.Iowait + t.Irq + t.Softirq + t.Steal
	}
	all := total(to) - total(from)
	idle := to.Idle + to.Iowait - from.Idle - from.Iowait
	if all <= 0 {
		return 0
	}
	return min(1, max(0, 1-idle/all))
}

func (s *sampler) measureNetworks(ctx context.Context, st *nusav1.NodeStats, now time.Time) error {
	counters, err := net.IOCountersWithContext(ctx, true)
	if err != nil {
		return fmt.Errorf("network counters: %w", err)
	}
	slices.SortFunc(counters, func(a, b net.IOCountersStat) int { return strings.Compare(a.Name, b.Name) })
	next := map[string]net.IOCountersStat{}
	for _, c := range counters[:min(len(counters), maxDevices)] {
		n := &nusav1.NetworkStats{Name: c.Name, BytesIn: c.BytesRecv, BytesOut: c.BytesSent,
			PacketsIn: c.PacketsRecv, PacketsOut: c.PacketsSent, Errors: c.Errin + c.Errout}
		if before, ok := s.counters[c.Name]; ok {
			n.InPerSecond = rate(before.BytesRecv, c.BytesRecv, now.Sub(s.latestAt))
			n.OutPerSecond = rate(before.BytesSent, c.BytesSent, now.Sub(s.latestAt))
		}
		next[c.Name] = c
		st.Networks = append(st.Networks, n)
	}
	s.counters = next
	return nil
}

// rate returns a counter's rate in units a second, or 0 if the counter was reset.
func rate(from, to uint64, over time.Duration) float64 {
	if to < from || over <= 0 {
		return 0
	}
	return float64(to-from) / over.Seconds()
}
