package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// lookAgain is how often drivers and static facts are looked at again.
const lookAgain = 30 * time.Second

// inventory is what this node offers. It is sent when it changes and never
// repeated otherwise.
type inventory struct {
	cfg     Config
	log     *slog.Logger
	drivers map[string]driver.Driver
	changed *pulse

	mu    sync.Mutex
	now   *nusav1.NodeInventory // replaced, never changed
	tasks int
}

// newInventory looks at the host for the first time.
func newInventory(ctx context.Context, cfg Config, log *slog.Logger) (*inventory, error) {
	inv := &inventory{cfg: cfg, log: log, drivers: cfg.Drivers, changed: newPulse()}
	now, err := inv.look(ctx)
	if err != nil {
		return nil, err
	}
	inv.now = now
	return inv, nil
}

func (inv *inventory) get() *nusav1.NodeInventory {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.now
}

// run looks again and again, and tells what the engine must know.
func (inv *inventory) run(ctx context.Context, e *engine) error {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-inv.cfg.driversChanged:
		}
		now, err := inv.look(ctx)
		if err != nil {
			if ctx.Err() == nil {
				inv.log.Warn("host not looked at", "error", err)
			}
			continue
		}
		if proto.Equal(now, inv.get()) {
			continue
		}
		inv.mu.Lock()
		inv.now = now
		inv.mu.Unlock()
		if !e.do(ctx, func() { inv.tell(&e.host.Drivers) }) {
			return nil
		}
		inv.changed.beat()
	}
}

// tell replaces the health of the drivers by what is known now.
func (inv *inventory) tell(drivers *map[string]string) {
	out := map[string]string{}
	for _, d := range inv.get().GetDrivers() {
		out[d.GetName()] = ""
		if !d.GetHealthy() {
			out[d.GetName()] = "unhealthy"
			if d.GetMessage() != "" {
				out[d.GetName()] = d.GetMessage()
			}
		}
	}
	*drivers = out
}

// look makes the inventory from the host and the configuration.
func (inv *inventory) look(ctx context.Context) (*nusav1.NodeInventory, error) {
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
	for _, name := range slices.Sorted(maps.Keys(inv.drivers)) {
		f := inv.drivers[name].Fingerprint(ctx)
		if err := inv.cfg.setup.CanSecrets(); err != nil && slices.Contains(f.Capabilities, driver.CapSecrets) {
			f.Capabilities = slices.DeleteFunc(slices.Clone(f.Capabilities), func(c string) bool { return c == driver.CapSecrets })
			f.Message = strings.TrimPrefix(f.Message+"; no secrets: "+err.Error(), "; ")
		}
		out.Drivers = append(out.Drivers, &nusav1.DriverInfo{Name: name, Healthy: f.Healthy, Version: f.Version, Message: clip(f.Message), Capabilities: f.Capabilities})
	}
	return out, nil
}

// capacity is what the scheduler may use: this agent's share of the machine,
// or what the configuration says, less what is reserved.
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

// address of this host, for people: its first address that others can use.
func (inv *inventory) address() string {
	for _, n := range inv.get().GetFacts().GetNetworks() {
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

// setTasks notes how many tasks run here.
func (inv *inventory) setTasks(n int) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.tasks = n
}

// stats of the host now, with this agent's tasks.
func (inv *inventory) stats(ctx context.Context) (*nusav1.NodeStats, error) {
	st, err := inv.cfg.Facts.Stats(ctx)
	if err != nil {
		return nil, err
	}
	st = proto.CloneOf(st) // it is shared
	inv.mu.Lock()
	defer inv.mu.Unlock()
	st.Tasks = int32(inv.tasks)
	return st, nil
}
