package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
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
	"github.com/nusa-scheduler/nusa/internal/webhook"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/topology"
)

// Limits of a federation. Within them it fits the port plan and one machine.
const (
	maxRegions = 20
	maxServers = 5
	maxAgents  = 50
	// portsPerRegion is enough for portsPerServer ports for each of maxServers servers.
	portsPerRegion = 100
	portsPerServer = 10
)

// DefaultRegions are so far apart that the choice of a region matters.
var DefaultRegions = []string{"southeastasia", "japaneast", "westeurope", "eastus", "brazilsouth"}

// Options configure a federation. A field with the zero value gets its default.
type Options struct {
	// Regions are the names of the regions. The global server is at the place of the first
	// region. Default: the regions of an earlier start in DataDir, else those of the file
	// WAN, else DefaultRegions.
	Regions []string
	// Servers and Agents are the numbers for each region. Default of Servers: the number of
	// an earlier start in DataDir, else 1. Default of Agents: 3.
	Servers, Agents int
	// DataDir is the folder for all data. A later start must have the same regions and
	// servers. Default: a temporary directory, which is removed at the end.
	DataDir string
	// SecretsDir is the folder with the secrets of jobs (agent.Config). Default: none.
	SecretsDir string
	// WAN is "azure", "none", or the name of a CSV matrix file. Default: "azure".
	WAN string
	// Port is the first port. The federation uses a hundred ports for the global server and
	// a hundred more for each region. Default: 7600.
	Port int
	// Plugins maps the name of a further driver of every agent to the path of its
	// executable.
	Plugins map[string]string
	// DockerHost and Incus are the addresses of the engines of every agent (agent.Config).
	// Default: the usual sockets, if they exist.
	DockerHost, Incus string
	// Insecure lets every process of this machine use the federation, without encryption. Default:
	// the federation has an authority of its own in DataDir, and every member an identity.
	Insecure bool
	// Logger receives the logs of every role. Default: they are discarded.
	Logger *slog.Logger
	// Version is the version of the build.
	Version string
	// Ready is called once every region is connected and every node is ready.
	Ready func(Federation)
	// Waiting is called after 1 s, and then every 10 s until Ready. The text says what is
	// not ready. If Waiting is nil, nothing is reported.
	Waiting func(text string)
	// Changed is called when the file WAN has changed. The text lists the changes, or says
	// why the file cannot be used. If Changed is nil, nothing is reported.
	Changed func(text string)
}

// Federation says how to reach a running federation.
type Federation struct {
	// Addr is the gRPC address of the global server. HTTP is the address of its health
	// checks.
	Addr, HTTP string
	// Regions maps a region to the gRPC address of its first server. Names are the regions
	// in the order of their ports.
	Regions map[string]string
	Names   []string
	// Servers and Agents are the numbers over all regions.
	Servers, Agents int
	DataDir         string
	// Identity is the folder with the identity of an operator. It is empty if the federation is
	// not encrypted.
	Identity string
	// TokenFile has an access token with the role admin. It is empty if the federation is not
	// encrypted, or if the operator may not make such a token.
	TokenFile string
	// WAN is the name of the table of round trips.
	WAN     string
	Started time.Duration
	// Cut cuts a region off from all other regions and from the global server. The region
	// at the place of the global server stays connected to it. Heal connects the region
	// again. Both are nil without an emulated network.
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

// complete sets the defaults of the shape, and checks all options.
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

// Run starts a federation and blocks until ctx ends or a role fails. It returns nil if ctx
// ended. When Run returns, everything that it started has ended, tasks included. It refuses
// a data directory of another role, or of a federation with another shape (ErrShape).
func Run(ctx context.Context, opts Options) (err error) {
	o := opts.withDefaults()
	file := followed(o.WAN)
	table, err := Table(o.WAN)
	if err != nil {
		return err
	}
	// Errors are found before a directory is made.
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
	ids, err := openIdentities(ctx, &o)
	if err != nil {
		return err
	}
	net := emulate(table)
	defer net.end()
	if file.read != nil {
		file.regions, file.table = o.Regions, table
		defer file.start(ctx, net.change, o.Changed)()
	}
	f := &federation{Options: o, ids: ids, temporary: temporary, net: net.sockets, begin: time.Now(), waiting: newWaiting(o.Regions, o.Agents)}
	f.cut, f.heal = net.cutter(o.Regions)
	return f.run(ctx)
}

type federation struct {
	Options
	ids *identities
	// temporary says that the data directory is deleted at the end.
	temporary bool
	net       func(region string) network.Net
	// cut and heal are the functions of Federation.
	cut, heal func(region string)
	begin     time.Time
	// waiting is reported by a goroutine. stopWaiting ends that goroutine and waits for its
	// end.
	waiting     *waiting
	stopWaiting func()
}

// run starts the upper tiers first, because a region then connects at once and not after a
// back-off. It stops the lower tiers first. So agents stop their tasks while the upper
// tiers still run and see no failure.
func (f *federation) run(ctx context.Context) error {
	upper, stopUpper := context.WithCancel(context.WithoutCancel(ctx))
	defer stopUpper()
	g, upper := errgroup.WithContext(upper)
	lower, stopLower := context.WithCancel(ctx)
	defer stopLower()
	// A failure of an upper tier also stops the agents.
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
	g.Go(func() error { return f.ids.keep(lower) })

	err := agents.Wait()
	stopUpper()
	return errors.Join(err, g.Wait())
}

// reportWaiting reports what the start is waiting for, until the caller calls end.
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
		Net:      f.net(f.Regions[0]),
		Secure:   f.ids.global("global-1"),
		Logger:   f.Logger.With("server", "global-1"),
		Region:   f.Regions[0],
		Version:  f.Version,
		Webhooks: webhook.Policy{AllowPrivate: thisMachine, AllowHTTP: true},
		Ready:    func(a global.Addresses) { ready <- a },
	})
	return wrap("global-1", err)
}

// thisMachine are the networks of this machine, where a receiver of webhooks may be tried.
var thisMachine = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func (f *federation) regional(ctx context.Context, i, s int, region, globalAddr string) error {
	name := fmt.Sprintf("%s-server-%d", region, s+1)
	id, err := f.ids.server(region, name)
	if err != nil {
		return wrap(name, err)
	}
	err = regional.Run(ctx, regional.Config{
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
		Identity:        id,
		GossipKeys:      f.ids.gossip(region),
		ProbeKeys:       f.ids.probes(),
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
	// The agents divide the dynamic ports of the machine, like its capacity.
	const portMin, portMax = 20000, 32000
	span := (portMax - portMin) / total
	first := portMin + (i*f.Agents+a)*span
	// Jobs run as the user who started the federation. That user allows jobs the current
	// folder.
	here, err := os.Getwd()
	if err != nil {
		return wrap(name, err)
	}
	id, err := f.ids.agent(region, name)
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
		Identity:         id,
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
