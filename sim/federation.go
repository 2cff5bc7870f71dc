package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/agent"
	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/driver/reserve"
	"github.com/nusa-scheduler/nusa/agent/facts"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// Options are the options of a Federation.
type Options struct {
	// Regions are the region names. Default: alpha and beta.
	Regions []string
	// Globals is the number of global servers. Servers and Agents are the numbers of servers and
	// agents in each region. The defaults are 1, 1 and 2.
	Globals, Servers, Agents int
	// Disk stores the data of regional servers on disk, so that a stopped or killed server returns
	// with its identity. Without Disk, the log is in memory.
	Disk bool
	// Leave makes a stopped agent stop its tasks and say goodbye.
	Leave bool
	// Stats returns what the named agent measures at the given time. Default: constant
	// values.
	Stats func(agent string, now time.Duration) *nusav1.NodeStats
	// VolumesAllow holds, by the agent's name, the folders of this machine that the agent allows.
	VolumesAllow map[string][]string
	// Reserve gives the agents the driver reserve. What an agent reserves outlives a kill.
	Reserve bool
	// ReservationRetention is that of the global servers. Default: theirs.
	ReservationRetention time.Duration
	// DNS gives the agents a DNS server at port 7653.
	DNS bool
	// Net sets latency and loss of the network.
	Net simnet.Options
	// Logger logs for all roles. Default: none.
	Logger *slog.Logger
}

// clientIP is the host of operators.
const clientIP = "10.255.0.1"

// libraryDelay is how long goroutines of a library may outlive their owner. For example, a gossip
// probe in flight ends with its own time-out.
const libraryDelay = time.Minute

// Federation is a running federation. Its processes are named "global-1",
// "alpha-1" (a server of region alpha) and "alpha-agent-1".
type Federation struct {
	// Net is the network. Tests make faults in it.
	Net *simnet.Network
	// Store is the store of all global servers.
	Store *store.Memory

	t         *testing.T
	opts      Options
	dir       string
	began     time.Time
	processes map[string]*Process
	drivers   map[string]*mock.Driver
	begun     *begun
	conns     map[string]*grpc.ClientConn
}

// Process is a running server or agent.
type Process struct {
	Name, IP string
	// Node is the node id of an agent.
	Node string

	cancel context.CancelFunc
	ended  chan error
	// store is a global server's connection to the store.
	store *store.MemoryClient
}

// Start runs a federation that ends with the test. It returns when every process serves. The
// leaders may not be elected yet.
func Start(t *testing.T, opts Options) *Federation {
	t.Helper()
	if len(opts.Regions) == 0 {
		opts.Regions = []string{"alpha", "beta"}
	}
	opts.Globals, opts.Servers, opts.Agents = max(opts.Globals, 1), max(opts.Servers, 1), max(opts.Agents, 0)
	if opts.Agents == 0 {
		opts.Agents = 2
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Federation{
		Net: simnet.New(opts.Net), Store: store.NewMemory(), t: t, opts: opts, dir: t.TempDir(), began: time.Now(),
		processes: map[string]*Process{}, drivers: map[string]*mock.Driver{}, begun: &begun{runs: map[Instance]map[driver.ID]bool{}, well: map[driver.ID]time.Time{}}, conns: map[string]*grpc.ClientConn{},
	}
	t.Cleanup(f.close)
	for i := range opts.Globals {
		f.StartGlobal(i + 1)
	}
	for _, region := range opts.Regions {
		for i := range opts.Servers {
			f.StartServer(region, i+1)
		}
		for i := range opts.Agents {
			f.StartAgent(region, i+1)
		}
	}
	return f
}

// Clock returns the time by which leases are counted.
func (f *Federation) Clock() time.Duration { return time.Since(f.began) }

func globalIP(i int) string { return fmt.Sprintf("10.0.0.%d", i) }

// ServerIP returns the host of a region's server; i counts from 1.
func (f *Federation) ServerIP(region string, i int) string {
	return fmt.Sprintf("10.%d.0.%d", slices.Index(f.opts.Regions, region)+1, i)
}

// AgentIP returns the host of a region's agent; i counts from 1.
func (f *Federation) AgentIP(region string, i int) string {
	return fmt.Sprintf("10.%d.1.%d", slices.Index(f.opts.Regions, region)+1, i)
}

func (f *Federation) log(name string) *slog.Logger { return f.opts.Logger.With("process", name) }

// StartGlobal starts global server i; i counts from 1.
func (f *Federation) StartGlobal(i int) *Process {
	f.t.Helper()
	name, ip := fmt.Sprintf("global-%d", i), globalIP(i)
	return f.start(name, ip, func(ctx context.Context, n network.Net, p *Process, ready func()) error {
		p.store = f.Store.Client()
		defer p.store.Close()
		return global.Run(ctx, global.Config{
			Name: name, GRPCAddr: ip + ":7600", HTTPAddr: "-", Store: p.store,
			Net: n, Logger: f.log(name), Clock: f.Clock,
			ReservationRetention: f.opts.ReservationRetention,
			Webhooks:             webhook.Policy{AllowHTTP: true, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Dial: n.Dial},
			Ready:                func(global.Addresses) { ready() },
		})
	})
}

// StartServer starts server i of a region; i counts from 1. After a kill, the server returns as a
// new one unless its data is on disk.
func (f *Federation) StartServer(region string, i int) *Process {
	f.t.Helper()
	name, ip := fmt.Sprintf("%s-%d", region, i), f.ServerIP(region, i)
	dir := ""
	if f.opts.Disk {
		dir = filepath.Join(f.dir, name)
	}
	var globals []string
	for i := range f.opts.Globals {
		globals = append(globals, globalIP(i+1)+":7600")
	}
	return f.start(name, ip, func(ctx context.Context, n network.Net, p *Process, ready func()) error {
		return regional.Run(ctx, regional.Config{
			Region: &nusav1.RegionDefinition{Name: region}, Name: name, InMemory: dir == "", DataDir: dir,
			GRPCAddr: ip + ":7610", RaftAddr: ip + ":7611", GossipAddr: ip + ":7612", ProbeAddr: ip + ":7613", HTTPAddr: "-",
			Join: f.servers(region, ":7612"), BootstrapExpect: f.opts.Servers, Global: globals,
			Net: n, Logger: f.log(name), Clock: f.Clock,
			Ready: func(regional.Addresses) { ready() },
		})
	})
}

func (f *Federation) servers(region, port string) []string {
	var out []string
	for i := range f.opts.Servers {
		out = append(out, f.ServerIP(region, i+1)+port)
	}
	return out
}

// StartAgent starts agent i of a region; i counts from 1. After Kill, the agent has the same node
// but no tasks. After Stop, its tasks have continued.
func (f *Federation) StartAgent(region string, i int) *Process {
	f.t.Helper()
	name, ip := fmt.Sprintf("%s-agent-%d", region, i), f.AgentIP(region, i)
	if f.drivers[name] == nil {
		f.drivers[name] = mock.New(mock.Config{Clock: f.Clock})
	}
	dir := filepath.Join(f.dir, name)
	return f.start(name, ip, func(ctx context.Context, n network.Net, p *Process, ready func()) error {
		drivers := map[string]driver.Driver{"process": pretend{f.drivers[name], f.begun}}
		if f.opts.Reserve {
			books, err := reserve.New(reserve.Config{Dir: dir + "-reserve", Clock: f.Clock, BootID: name})
			if err != nil {
				return err
			}
			defer books.Close()
			drivers["reserve"] = books
		}
		address := ""
		if f.opts.DNS {
			address = ip + ":7653"
		}
		return agent.Run(ctx, agent.Config{
			DNSAddr: address, Region: region, Name: name, DataDir: dir, Servers: f.servers(region, ":7610"), HTTPAddr: "-",
			Net: n, Logger: f.log(name), Clock: f.Clock, Facts: f.machine(name),
			Drivers:         drivers,
			LeaveOnShutdown: f.opts.Leave, VolumesAllow: f.opts.VolumesAllow[name],
			Ready: func(a agent.Addresses) { p.Node = a.NodeID; ready() },
		})
	})
}

// machine returns the facts of a host with 8 cores and 16 GiB.
func (f *Federation) machine(name string) facts.Source {
	return facts.Source{
		Static: func(context.Context) (*nusav1.HostFacts, error) {
			return &nusav1.HostFacts{
				Hostname: name, Os: "linux", Arch: "amd64", CpuCores: 8, CpuPhysicalCores: 4, MemoryBytes: 16 << 30,
				Disks: []*nusav1.DiskFacts{{Device: "/dev/sda1", Mount: "/", FsType: "ext4", TotalBytes: 100 << 30}},
			}, nil
		},
		Stats: func(context.Context) (*nusav1.NodeStats, error) {
			if f.opts.Stats != nil {
				return f.opts.Stats(name, f.Clock()), nil
			}
			return &nusav1.NodeStats{Cpu: 0.1, MemoryUsedBytes: 1 << 30, MemoryAvailableBytes: 15 << 30}, nil
		},
	}
}

// start runs a process on its own host and waits until the process serves.
func (f *Federation) start(name, ip string, run func(context.Context, network.Net, *Process, func()) error) *Process {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{Name: name, IP: ip, cancel: cancel, ended: make(chan error, 1)}
	serving := make(chan struct{})
	go func() { p.ended <- run(ctx, f.Net.Net(ip), p, func() { close(serving) }) }()
	select {
	case <-serving:
	case err := <-p.ended:
		cancel()
		f.t.Fatalf("%s did not start: %v", name, err)
	case <-time.After(time.Minute):
		cancel()
		f.t.Fatalf("%s does not serve after a minute", name)
	}
	f.processes[name] = p
	return p
}

// Running returns the sorted names of the processes that run.
func (f *Federation) Running() []string { return slices.Sorted(maps.Keys(f.processes)) }

// Process returns a process by name.
func (f *Federation) Process(name string) *Process {
	f.t.Helper()
	p := f.processes[name]
	if p == nil {
		f.t.Fatalf("no process %s runs", name)
	}
	return p
}

// Stop ends a process as its operator would.
func (f *Federation) Stop(name string) {
	f.t.Helper()
	p := f.Process(name)
	delete(f.processes, name)
	p.cancel()
	if err := f.ended(p); err != nil {
		f.t.Errorf("%s ended with %v", name, err)
	}
}

// ended waits for the end of a process. If a process hung, virtual time would run for ever. So
// after the bound ended returns an error, and the bubble prints its goroutines.
func (f *Federation) ended(p *Process) error {
	select {
	case err := <-p.ended:
		return err
	case <-time.After(5 * time.Minute):
		return errors.New("it does not end")
	}
}

// Kill ends a process and its machine: the process sends no goodbye, and the tasks on the machine
// end.
func (f *Federation) Kill(name string) {
	f.t.Helper()
	p := f.Process(name)
	delete(f.processes, name)
	f.Net.Kill(p.IP)
	if p.store != nil {
		p.store.Cut(true)
	}
	p.cancel()
	// The process has no network now, so its last messages do not matter.
	_ = f.ended(p)
	delete(f.drivers, name)
}

// close stops all processes, agents first, and lets time pass for the goroutines of libraries.
func (f *Federation) close() {
	f.t.Helper()
	for _, c := range f.conns {
		c.Close()
	}
	rank := func(name string) int {
		switch {
		case f.drivers[name] != nil:
			return 0
		case f.processes[name].IP < "10.1":
			return 2
		}
		return 1
	}
	names := f.Running()
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	for _, name := range names {
		f.Stop(name)
	}
	time.Sleep(libraryDelay)
}

// Conn returns an operator's connection to a gRPC address.
func (f *Federation) Conn(addr string) *grpc.ClientConn {
	f.t.Helper()
	if f.conns[addr] == nil {
		c, err := serve.Dial(f.Net.Net(clientIP), addr)
		if err != nil {
			f.t.Fatal(err)
		}
		f.conns[addr] = c
	}
	return f.conns[addr]
}

// Global returns a connection to global server i; i counts from 1.
func (f *Federation) Global(i int) *grpc.ClientConn { return f.Conn(globalIP(i) + ":7600") }

// Server returns a connection to server i of a region; i counts from 1.
func (f *Federation) Server(region string, i int) *grpc.ClientConn {
	return f.Conn(f.ServerIP(region, i) + ":7610")
}

// CutStore disconnects a global server from the store until the returned function is called.
func (f *Federation) CutStore(name string) (heal func()) {
	f.t.Helper()
	client := f.Process(name).store
	client.Cut(true)
	return func() { client.Cut(false) }
}

// Cut disconnects two groups of processes until the returned function is called.
func (f *Federation) Cut(a, b []string) (heal func()) {
	each := func(do func(a, b string)) {
		for _, x := range a {
			for _, y := range b {
				do(x, y)
			}
		}
	}
	each(f.Net.Cut)
	return func() { each(f.Net.Heal) }
}

// GlobalIPs returns the hosts of the global servers, for Cut.
func (f *Federation) GlobalIPs() []string {
	var out []string
	for i := range f.opts.Globals {
		out = append(out, globalIP(i+1))
	}
	return out
}

// RegionIPs returns the hosts of a region, servers first, for Cut.
func (f *Federation) RegionIPs(region string) []string {
	var out []string
	for i := range f.opts.Servers {
		out = append(out, f.ServerIP(region, i+1))
	}
	for i := range f.opts.Agents {
		out = append(out, f.AgentIP(region, i+1))
	}
	return out
}

// errNotYet is the error of a condition of Eventually that is not met and gives no reason.
var errNotYet = errors.New("not yet")

// Eventually polls a condition until it returns nil, for at most d of virtual time.
func (f *Federation) Eventually(d time.Duration, what string, condition func(ctx context.Context) error) {
	f.t.Helper()
	deadline := time.Now().Add(d)
	err := errNotYet
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err = condition(ctx)
		cancel()
		if err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	f.t.Fatalf("%s: not after %v: %v", what, d, err)
}
