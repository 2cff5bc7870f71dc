package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/agent"
	"github.com/nusa-scheduler/nusa/agent/facts"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/topology"
)

// Limits of a federation that fits the port plan and one machine.
const (
	maxRegions = 20
	maxServers = 5
	maxAgents  = 50
	// portsPerRegion has portsPerServer ports for each of maxServers servers.
	portsPerRegion = 100
	portsPerServer = 10
)

// DefaultRegions are far enough apart for placement to matter.
var DefaultRegions = []string{"southeastasia", "japaneast", "westeurope", "eastus", "brazilsouth"}

// Options of a federation. Zero values mean the defaults.
type Options struct {
	// Regions by name. The global server is beside the first one. Default:
	// those of an earlier start in DataDir, else those of the WAN's file, else
	// DefaultRegions.
	Regions []string
	// Servers and Agents of each region. Default of Servers: that of an earlier start in
	// DataDir, else 1. Default of Agents: 3.
	Servers, Agents int
	// DataDir holds all data. A later start must have the same regions and
	// servers. Empty: a temporary directory that is removed at the end.
	DataDir string
	// SecretsDir holds the secrets of jobs; see agent.Config. Default: none.
	SecretsDir string
	// WAN is "azure" (default), "none", or a CSV matrix file.
	WAN string
	// Port is the first port; the federation uses Port … Port+99 for the global
	// server and a hundred more for each region. Default 7600.
	Port int
	// Plugins are further drivers of every agent: paths of executables by name.
	Plugins map[string]string
	// DockerHost and Incus are the addresses of every agent's engines; see
	// agent.Config. Default: the usual sockets, if they exist.
	DockerHost, Incus string
	// Logger receives every role's logs. Default: discards them.
	Logger *slog.Logger
	// Version of the build.
	Version string
	// Ready is called once every region is connected and every node is ready.
	Ready func(Federation)
	// Waiting is called after 1 s, and then every 10 s until Ready. The text says what is not
	// ready. Nil: nothing is reported.
	Waiting func(text string)
	// Changed is called when the WAN's file has changed. The text lists the changes or says
	// why the file cannot be used. Nil: nothing is reported.
	Changed func(text string)
}

// Federation says how to reach a running federation.
type Federation struct {
	// Addr is the global server's gRPC address, HTTP its health address.
	Addr, HTTP string
	// Regions maps a region to its first server's gRPC address; Names are the
	// regions in the order of their ports.
	Regions map[string]string
	Names   []string
	// Servers and Agents are the numbers in all regions together.
	Servers, Agents int
	DataDir         string
	// WAN names the table of round trips.
	WAN     string
	Started time.Duration
	// Cut cuts a region from all others, and from the global server unless that is beside the
	// region; Heal connects the region again. Both are nil without an emulated network.
	Cut, Heal func(region string)
}

func (o Options) withDefaults() Options {
	if o.Agents == 0 {
		o.Agents = 3
	}
	if o.WAN == "" {
		o.WAN = wanAzure
	}
	if o.Port == 0 {
		o.Port = 7600
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// complete sets the defaults of the shape and checks all options.
func (o Options) complete(table *topology.Table) (_ Options, err error) {
	if len(o.Regions) == 0 {
		o.Regions, err = o.defaultRegions(table)
		if err != nil {
			return o, err
		}
	}
	if o.Servers == 0 {
		o.Servers = 1
	}
	switch ports := portsPerRegion * (len(o.Regions) + 1); {
	case o.Servers < 1 || o.Servers > maxServers:
		return o, fmt.Errorf("--servers: %d is not 1..%d", o.Servers, maxServers)
	case o.Agents < 1 || o.Agents > maxAgents:
		return o, fmt.Errorf("--agents: %d is not 1..%d", o.Agents, maxAgents)
	case o.Port < 1024 || o.Port+ports > 65535:
		return o, fmt.Errorf("--port: %d is not within 1024..%d, which leaves room for %d ports", o.Port, 65535-ports, ports)
	}
	return o, o.checkRegions(table)
}

// Run starts a federation and blocks until ctx ends (nil) or a role fails. When Run returns,
// everything that it started has ended, tasks included. It refuses a data directory of another
// role, or of a federation with another shape (ErrShape).
func Run(ctx context.Context, opts Options) (err error) {
	o := opts.withDefaults()
	file := followed(o.WAN)
	table, err := Table(o.WAN)
	if err != nil {
		return err
	}
	// Find errors before a directory is made.
	o, err = o.loadShape()
	if err != nil {
		return err
	}
	o, err = o.complete(table)
	if err != nil {
		return err
	}
	temporary := o.DataDir == ""
	if temporary {
		o.DataDir, err = os.MkdirTemp("", "nusa-dev-")
		if err != nil {
			return fmt.Errorf("make a temporary data directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.DataDir)) }()
	}
	dir, err := serve.OpenDataDir(o.DataDir, "dev", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := o.checkPorts(ctx); err != nil {
		return err
	}
	if err := o.saveShape(); err != nil {
		return err
	}
	net := emulate(table)
	defer net.end()
	if file.read != nil {
		file.regions, file.table = o.Regions, table
		defer file.start(ctx, net.change, o.Changed)()
	}
	f := &federation{Options: o, temporary: temporary, net: net.sockets, begin: time.Now(), waiting: newWaiting(o.Regions, o.Agents)}
	f.cut, f.heal = net.cutter(o.Regions)
	return f.run(ctx)
}

type federation struct {
	Options
	// temporary: the data directory is deleted at the end.
	temporary bool
	net       func(region string) network.Net
	// cut and heal are those of Federation.
	cut, heal func(region string)
	begin     time.Time
	// waiting is reported by a goroutine. stopWaiting ends that goroutine and waits for it.
	waiting     *waiting
	stopWaiting func()
}

// run starts the tiers from the top, because a region then connects at once instead of after
// a back-off. It stops the tiers from the bottom. So agents stop their tasks while the upper
// tiers still run and see no failure.
func (f *federation) run(ctx context.Context) error {
	upper, stopUpper := context.WithCancel(context.WithoutCancel(ctx))
	defer stopUpper()
	g, upper := errgroup.WithContext(upper)
	lower, stopLower := context.WithCancel(ctx)
	defer stopLower()
	// A failure of an upper tier stops the agents too.
	context.AfterFunc(upper, stopLower)

	f.stopWaiting = f.reportWaiting(lower)
	defer f.stopWaiting()

	globalReady := make(chan global.Addresses, 1)
	g.Go(func() error { return f.global(upper, globalReady) })
	var addr global.Addresses
	select {
	case addr = <-globalReady:
		f.waiting.globalReady()
	case <-upper.Done():
		return g.Wait()
	case <-ctx.Done():
		stopUpper()
		return g.Wait()
	}

	for i, region := range f.Regions {
		for s := range f.Servers {
			g.Go(func() error { return f.regional(upper, i, s, region, addr.GRPC) })
		}
	}
	source := facts.Host()
	agents, lower := errgroup.WithContext(lower)
	for i, region := range f.Regions {
		for a := range f.Agents {
			agents.Go(func() error { return f.agent(lower, i, a, region, source) })
		}
	}
	g.Go(func() error { return f.awaitReady(lower, addr) })

	err := agents.Wait()
	stopUpper()
	return errors.Join(err, g.Wait())
}

// reportWaiting reports what the start waits for, until end is called.
func (f *federation) reportWaiting(ctx context.Context) (end func()) {
	if f.Waiting == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { f.waiting.report(ctx, f.Waiting) })
	return func() {
		cancel()
		telling.Wait()
	}
}

func (f *federation) global(ctx context.Context, ready chan<- global.Addresses) error {
	err := global.Run(ctx, global.Config{
		Name:     "global-1",
		DataDir:  filepath.Join(f.DataDir, "global-1"),
		GRPCAddr: f.addr(0, 0, 0),
		HTTPAddr: f.addr(0, 0, portGlobalHTTP),
		Etcd:     global.Etcd{PeerAddr: f.addr(0, 0, portEtcdPeer)},
		Net:      f.net(f.Regions[0]),
		Logger:   f.Logger.With("server", "global-1"),
		Region:   f.Regions[0],
		Version:  f.Version,
		Ready:    func(a global.Addresses) { ready <- a },
	})
	return wrap("global-1", err)
}

func (f *federation) regional(ctx context.Context, i, s int, region, globalAddr string) error {
	name := fmt.Sprintf("%s-server-%d", region, s+1)
	err := regional.Run(ctx, regional.Config{
		Region:          definition(region),
		Name:            name,
		DataDir:         filepath.Join(f.DataDir, name),
		GRPCAddr:        f.addr(i+1, s, portGRPC),
		RaftAddr:        f.addr(i+1, s, portRaft),
		GossipAddr:      f.addr(i+1, s, portGossip),
		ProbeAddr:       f.addr(i+1, s, portProbe),
		HTTPAddr:        f.addr(i+1, s, portHTTP),
		Join:            []string{f.addr(i+1, 0, portGossip)},
		BootstrapExpect: f.Servers,
		Global:          []string{globalAddr},
		Net:             f.net(region),
		Logger:          f.Logger.With("server", name),
		Raft:            regional.FastRaft(),
		Version:         f.Version,
	})
	return wrap(name, err)
}

func (f *federation) agent(ctx context.Context, i, a int, region string, source facts.Source) error {
	name := fmt.Sprintf("%s-agent-%d", region, a+1)
	var servers []string
	for s := range f.Servers {
		servers = append(servers, f.addr(i+1, s, portGRPC))
	}
	total := len(f.Regions) * f.Agents
	// The dynamic ports of the machine are divided like its capacity.
	const portMin, portMax = 20000, 32000
	span := (portMax - portMin) / total
	first := portMin + (i*f.Agents+a)*span
	// Jobs run as the user who started the federation. This user allows jobs the current
	// folder.
	here, err := os.Getwd()
	if err != nil {
		return wrap(name, err)
	}
	err = agent.Run(ctx, agent.Config{
		Region:           region,
		Name:             name,
		DataDir:          filepath.Join(f.DataDir, name),
		Servers:          servers,
		HTTPAddr:         "-",
		Labels:           map[string]string{"rack": fmt.Sprintf("r%d", a+1)},
		SharedMachine:    "dev",
		Share:            1 / float64(total),
		PortMin:          first,
		PortMax:          first + span - 1,
		Net:              f.net(region),
		Logger:           f.Logger.With("agent", name),
		Facts:            source,
		Plugins:          f.Plugins,
		DockerHost:       f.DockerHost,
		Incus:            f.Incus,
		Version:          f.Version,
		MaxRetainedBytes: 1 << 30 / int64(total),
		PauseOnShutdown:  true,
		RemoveOnShutdown: f.temporary,
		VolumesAllow:     []string{here},
		ArtifactsAllow:   []string{"127.0.0.0/8", "::1/128", here},
		SecretsDir:       f.SecretsDir,
	})
	return wrap(name, err)
}

func wrap(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
