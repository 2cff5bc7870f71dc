package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// inspectEvery is the pause between two inspections of the drivers and the host.
const inspectEvery = 30 * time.Second

// inventory describes the node: its capacity, drivers and labels. The sessions send each change.
type inventory struct {
	cfg     Config
	changed notify.Signal

	mu    sync.Mutex
	now   *nusav1.NodeInventory // replaced as a whole, never changed in place
	tasks int

	// gpuProblems are the problems that the latest inspection found, by the accelerator's address;
	// the address "" has the error of the inspection. Only the goroutine that inspects the host
	// uses the map.
	gpuProblems map[string]string
}

// newInventory inspects the host for the first time.
func newInventory(ctx context.Context, cfg Config) (*inventory, error) {
	inv := &inventory{cfg: cfg}
	now, err := inv.inspect(ctx)
	if err != nil {
		return nil, err
	}
	inv.now = now
	return inv, nil
}

// Get returns the present inventory. Callers must not change it.
func (inv *inventory) Get() *nusav1.NodeInventory {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.now
}

// Changed returns a channel that the next change of the inventory closes.
func (inv *inventory) Changed() <-chan struct{} { return inv.changed.C() }

// run inspects the host repeatedly until ctx ends. setHost passes the state of the drivers and
// the memory of each accelerator to the engine.
func (inv *inventory) run(ctx context.Context, setHost func(context.Context, map[string]reconcile.Driver, map[string]int64) bool) error {
	tick := time.NewTicker(inspectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-inv.cfg.driversChanged:
		}
		now, err := inv.inspect(ctx)
		if err != nil {
			if ctx.Err() == nil {
				inv.cfg.Logger.Warn("the host could not be inspected", "error", err)
			}
			continue
		}
		if proto.Equal(now, inv.Get()) {
			continue
		}
		inv.mu.Lock()
		inv.now = now
		inv.mu.Unlock()
		if !setHost(ctx, inv.drivers(), inv.gpuMemory()) {
			return nil
		}
		inv.changed.Notify()
	}
}

// drivers maps the name of each driver to its state.
func (inv *inventory) drivers() map[string]reconcile.Driver {
	out := map[string]reconcile.Driver{}
	for _, d := range inv.Get().GetDrivers() {
		of := reconcile.Driver{Fencing: slices.Contains(d.GetCapabilities(), driver.CapSelfFencing)}
		if !d.GetHealthy() {
			of.Problem = cmp.Or(d.GetMessage(), "unhealthy")
		}
		out[d.GetName()] = of
	}
	return out
}

// inspect makes the inventory from the host and the configuration.
func (inv *inventory) inspect(ctx context.Context) (*nusav1.NodeInventory, error) {
	facts, err := inv.cfg.Facts.Static(ctx)
	if err != nil {
		return nil, fmt.Errorf("facts of the host: %w", err)
	}
	out := &nusav1.NodeInventory{
		Capacity: capacity(inv.cfg, facts), Pool: inv.cfg.Pool, Labels: maps.Clone(inv.cfg.Labels),
		InstanceQuota: int32(inv.cfg.InstanceQuota), PortMin: int32(inv.cfg.PortMin), PortMax: int32(inv.cfg.PortMax),
		ControlPlane: inv.cfg.ControlPlane, Facts: facts, Version: inv.cfg.Version,
		SharedMachine: inv.cfg.SharedMachine, Description: inv.cfg.Description,
	}
	if allow, ok := inv.cfg.setup.VolumesAllow(); ok {
		out.VolumesAllow = &nusav1.VolumesAllow{Folders: allow}
	}
	var whole []string
	out.Gpus, out.UnusableGpus, whole = inv.gpus(ctx)
	for _, name := range slices.Sorted(maps.Keys(inv.cfg.Drivers)) {
		f := inv.cfg.Drivers[name].Fingerprint(ctx)
		if err := inv.cfg.setup.CanSecrets(); err != nil && slices.Contains(f.Capabilities, driver.CapSecrets) {
			f.Capabilities = slices.DeleteFunc(slices.Clone(f.Capabilities), func(c string) bool { return c == driver.CapSecrets })
			f.Message = strings.TrimPrefix(f.Message+"; no secrets: "+err.Error(), "; ")
		}
		if len(whole) > 0 && slices.Contains(f.Capabilities, driver.CapGPUShare) {
			f.Capabilities = slices.DeleteFunc(slices.Clone(f.Capabilities), func(c string) bool { return c == driver.CapGPUShare })
			f.Message = strings.TrimPrefix(f.Message+"; no parts of accelerators: the compute mode of "+strings.Join(whole, ", ")+" is exclusive", "; ")
		}
		own := []string{driver.CapLifecycle}
		if slices.Contains(f.Capabilities, driver.CapUpdate) {
			own = append(own, driver.CapLiveResources)
		}
		f.Capabilities = slices.Sorted(slices.Values(append(own, f.Capabilities...)))
		out.Drivers = append(out.Drivers, &nusav1.DriverInfo{Name: name, Healthy: f.Healthy, Version: f.Version, Message: engine.Clip(f.Message), Capabilities: f.Capabilities, Config: job.ConfigSchemaToProto(f.Config)})
	}
	return out, nil
}

// gpus returns the accelerators that tasks may use, those that they may not use, and the addresses of
// those that only one program at a time can use. It logs a problem when it begins, changes or ends. If
// the inspection fails, the node offers no accelerator.
func (inv *inventory) gpus(ctx context.Context) (usable, unusable []*nusav1.GPUDevice, whole []string) {
	devices, err := inv.cfg.GPUs(ctx)
	problems := map[string]string{}
	if err != nil {
		problems[""] = err.Error()
		unusable = append(unusable, &nusav1.GPUDevice{Problem: engine.Clip(err.Error())})
	}
	for _, d := range devices {
		to := &nusav1.GPUDevice{Id: d.UUID, Model: d.Model, MemoryBytes: d.MemoryBytes, Address: d.Address, Problem: engine.Clip(d.Problem)}
		if d.Problem != "" {
			problems[d.Address] = d.Problem
			unusable = append(unusable, to)
			continue
		}
		usable = append(usable, to)
		if d.Exclusive {
			whole = append(whole, d.Address)
		}
	}
	if ctx.Err() == nil {
		inv.logProblems(problems)
	}
	return usable, unusable, whole
}

// logProblems logs the problems of accelerators that differ from those of the latest inspection.
func (inv *inventory) logProblems(problems map[string]string) {
	for at, why := range problems {
		if inv.gpuProblems[at] != why {
			inv.cfg.Logger.Warn("an accelerator is not offered", "address", at, "reason", why)
		}
	}
	for at := range inv.gpuProblems {
		if problems[at] == "" {
			inv.cfg.Logger.Info("the problem of an accelerator has ended", "address", at)
		}
	}
	inv.gpuProblems = problems
}

// gpuMemory maps the id of each accelerator that tasks may use to its memory.
func (inv *inventory) gpuMemory() map[string]int64 {
	out := map[string]int64{}
	for _, d := range inv.Get().GetGpus() {
		out[d.GetId()] = d.GetMemoryBytes()
	}
	return out
}

// capacity returns the resources that the scheduler may use: the configured values, or this
// agent's share of the machine, less the reserved resources.
func capacity(cfg Config, facts *nusav1.HostFacts) *nusav1.Resources {
	var disk int64
	for _, d := range facts.GetDisks() {
		disk = max(disk, d.GetTotalBytes())
	}
	part := func(total, instead, reserve int64) int64 {
		if instead > 0 {
			total = instead
		} else {
			total = int64(float64(total) * cfg.Share)
		}
		return max(0, total-reserve)
	}
	return &nusav1.Resources{
		CpuMilli:    part(int64(facts.GetCpuCores())*1000, cfg.Capacity.CPUMilli, cfg.Reserve.CPUMilli),
		MemoryBytes: part(facts.GetMemoryBytes(), cfg.Capacity.MemoryBytes, cfg.Reserve.MemoryBytes),
		DiskBytes:   part(disk, cfg.Capacity.DiskBytes, cfg.Reserve.DiskBytes),
	}
}

// Address returns the configured address of the host, or its first one that other machines can use, or "".
func (inv *inventory) Address() string {
	if inv.cfg.Address != "" {
		return inv.cfg.Address
	}
	for _, n := range inv.Get().GetFacts().GetNetworks() {
		for _, a := range n.GetAddresses() {
			ip, _, err := net.ParseCIDR(a)
			if err != nil {
				ip = net.ParseIP(a)
			}
			if ip != nil && ip.IsGlobalUnicast() {
				return ip.String()
			}
		}
	}
	return ""
}

// setTasks sets the number of running tasks.
func (inv *inventory) setTasks(n int) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.tasks = n
}

// Stats measures the host and adds the number of this agent's tasks.
func (inv *inventory) Stats(ctx context.Context) (*nusav1.NodeStats, error) {
	st, err := inv.cfg.Facts.Stats(ctx)
	if err != nil {
		return nil, err
	}
	st = proto.CloneOf(st) // other agents of this process use the same value
	inv.mu.Lock()
	defer inv.mu.Unlock()
	st.Tasks = int32(inv.tasks)
	return st, nil
}
