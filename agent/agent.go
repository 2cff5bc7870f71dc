package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/agent/api"
	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/agent/master"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/agent/supervise/slim"
	"github.com/nusa-scheduler/nusa/internal/logtap"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// Addresses are the addresses of a running agent.
type Addresses struct {
	// NodeID is the stable UUID of the node.
	NodeID string
	// HTTP is the address of the HTTP server. It is empty if the agent serves no HTTP.
	HTTP string
	// DNS is the address of the DNS server. It is empty if the agent has none.
	DNS string
}

// leaveLimit plus the tasks' longest kill timeout bounds how long an agent that leaves or
// pauses waits for its tasks to stop. An agent that leaves also waits within that time
// until the master has received the ends of all tasks.
const leaveLimit = 15 * time.Second

// Run runs an agent until ctx ends or until the first fatal error. It returns nil if ctx
// ended. When Run returns, everything that it started has ended, except the tasks and their
// supervisors. They continue unless LeaveOnShutdown or PauseOnShutdown is set.
func Run(ctx context.Context, cfg Config) (err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return err
	}
	dir, err := serve.OpenDataDir(cfg.DataDir, "agent/"+cfg.Region, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	tap := logtap.New()
	cfg.Logger = tap.Logger(cfg.Logger)
	// Drivers have files in the data directory, so they are made after the directory is
	// locked.
	cfg, err = cfg.withParts()
	if err != nil {
		return err
	}
	defer cfg.closeDrivers()
	st, err := store.Open(dir.Path("agent.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	found, err := openServices(ctx, cfg, dir)
	if err != nil {
		return err
	}
	defer found.close()
	r, err := assemble(ctx, cfg, dir, st, st.Write, found)
	if err != nil {
		return err
	}
	web, err := serve.Open(ctx, serve.Options{Net: cfg.Net, Logger: cfg.Logger, HTTPAddr: cfg.HTTPAddr, HTTPTLS: cfg.Identity.Web(), SmallBuffers: cfg.Share < 1,
		Ready: func() error {
			if err := cfg.Identity.Ready(); err != nil {
				return err
			}
			if !r.pool.Connected() {
				return errNotConnected
			}
			return nil
		}})
	if err != nil {
		return err
	}
	found.serveHTTP(web.Mux)
	r.engineMetrics.Register(web.Registry)
	r.masterMetrics.Register(web.Registry)
	r.tap = tap
	return r.run(ctx, web)
}

// errNotConnected is the reason that /readyz shows. Tasks continue without a master.
var errNotConnected = errors.New("no session with the region's master")

// role holds the parts of a running agent.
type role struct {
	cfg           Config
	services      *services
	nodeID        string
	engine        *engine.Engine
	writer        *store.Writer
	reports       *master.Reports
	pool          *master.Pool
	inventory     *inventory
	engineMetrics *engine.Metrics
	masterMetrics *master.Metrics
	tap           *logtap.Tap // of the logger
}

// assemble makes the parts of an agent and starts none of them. write makes a batch durable
// in the store.
func assemble(ctx context.Context, cfg Config, dir *serve.DataDir, st *store.Store, write func(store.Batch) error, found *services) (*role, error) {
	contents, err := st.Load()
	if err != nil {
		return nil, fmt.Errorf("local store: %w", err)
	}
	line, err := st.Timeline(cfg.BootID, cfg.Clock, contents)
	if err != nil {
		return nil, err
	}
	inv, err := newInventory(ctx, cfg)
	if err != nil {
		return nil, err
	}
	r := &role{cfg: cfg, services: found, nodeID: st.NodeID, inventory: inv, tap: logtap.New(), reports: master.NewReports(st.ID, st.Starts),
		engineMetrics: engine.NewMetrics(), masterMetrics: master.NewMetrics()}
	// Records that waited for the store are published once it can be written again.
	r.writer = store.NewWriter(write, cfg.Logger, func(ctx context.Context) { r.engine.Wake(ctx) })
	c := inv.Get().GetCapacity()
	r.engine, err = engine.New(engine.Config{
		Log: cfg.Logger, Clock: cfg.Clock, Timeline: line, Drivers: cfg.Drivers, Writer: r.writer, Reports: r.reports, Metrics: r.engineMetrics,
		Node: engine.Node{ID: st.NodeID, Region: cfg.Region, AllocsDir: dir.Path(allocsDir), Path: taskPath(), ProcessUser: cfg.ProcessUser, DNS: found.address(), Setup: cfg.setup, GPUMemory: func(id string) int64 { return inv.gpuMemory()[id] },
			Reach: engine.Reach{Dial: cfg.Net.Dial, RemoteHosts: cfg.remoteHosts, OwnAddress: inv.Address, Drivers: cfg.Drivers}},
		Host: reconcile.Host{CPUMilli: c.GetCpuMilli(), MemoryBytes: c.GetMemoryBytes(), DiskBytes: c.GetDiskBytes(),
			GPUs: inv.gpuMemory(), Quota: cfg.InstanceQuota, Drivers: inv.drivers()},
		TasksChanged: inv.setTasks, PortsInUse: func(ports []int) map[int]bool { return portsInUse(cfg.Net, ports) },
		MaxRetainedBytes: cfg.MaxRetainedBytes, MaxRetainedFolders: cfg.MaxRetainedFolders,
	}, contents)
	if err != nil {
		return nil, err
	}
	r.engine.SweepSetup()
	r.pool = master.NewPool(master.Config{NodeID: st.NodeID, Region: cfg.Region, Name: cfg.Name, Servers: cfg.Servers,
		Net: cfg.Net, Credentials: cfg.Identity.Client(identity.ServersOf(cfg.Region)), Log: cfg.Logger, Clock: cfg.Clock, Engine: r.engine, Reports: r.reports, Inventory: inv,
		Cluster: dir, Writer: r.writer, Metrics: r.masterMetrics, Master: contents.Master, Position: contents.Position, Orders: cfg.Orders, Discover: found.discover()})
	return r, nil
}

// run runs the parts until ctx ends. Then the agent leaves or pauses if its configuration
// says so. After that the sessions and the engine end together, and the pending writes are
// flushed.
func (r *role) run(ctx context.Context, web *serve.Server) error {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(inner)
	calls := grpc.NewServer()
	nusav1.RegisterAllocationsServer(calls, api.New(r.engine, r.cfg.Logger))
	nusav1.RegisterMonitorServer(calls, &logtap.Service{Tap: r.tap})
	r.services.register(calls)
	comparer := engine.NewComparer(r.engine)
	nusav1.RegisterRepairsServer(calls, api.NewRepairs(r.engine, comparer))
	g.Go(func() error { return r.engine.Run(gctx) })
	g.Go(func() error { return r.writer.Run(gctx) })
	if id := r.cfg.Identity; id != nil {
		g.Go(func() error { return id.Watch(gctx) })
	}
	if r.cfg.ReleaseMemory {
		g.Go(func() error { return releaseAtRest(gctx, r.engine.Changed, releaseMemory) })
	}
	g.Go(func() error { return r.inventory.run(gctx, r.engine.SetHost) })
	g.Go(func() error {
		select {
		case <-r.engine.Ready():
			return r.pool.Run(gctx)
		case <-gctx.Done():
			return nil
		}
	})
	g.Go(func() error {
		select {
		case <-r.engine.Ready():
			return comparer.Run(gctx)
		case <-gctx.Done():
			return nil
		}
	})
	g.Go(func() error { return web.Run(gctx) })
	g.Go(func() error { return r.services.run(gctx) })
	g.Go(func() error { return serve.GRPC(calls, r.pool.Tunnels()) })
	g.Go(func() error {
		<-gctx.Done()
		calls.Stop() // closes the tunnels' listener too
		return nil
	})
	g.Go(func() error {
		select {
		case <-gctx.Done():
			return nil
		case <-ctx.Done():
		}
		switch {
		case r.cfg.LeaveOnShutdown:
			r.leave(gctx)
		case r.cfg.PauseOnShutdown:
			r.pause(gctx)
		}
		stop()
		return nil
	})
	select {
	case <-r.engine.Ready():
		r.cfg.Logger.Info("agent runs", "node", r.nodeID, "region", r.cfg.Region, "http", web.HTTPAddr())
		if r.cfg.Ready != nil {
			r.cfg.Ready(Addresses{NodeID: r.nodeID, HTTP: web.HTTPAddr(), DNS: r.services.address()})
		}
	case <-gctx.Done():
	}
	err := g.Wait()
	return errors.Join(err, r.writer.Flush())
}

// pause stops every task and changes nothing else: no record and no report says that a task
// ended. The sessions continue until all tasks have stopped. Without a session the node
// would count as lost, and its work would be placed on other nodes while a task is still
// stopping.
func (r *role) pause(ctx context.Context) {
	killTimeout, ok := r.engine.Pause(ctx)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit+killTimeout)
	defer cancel()
	for {
		changed := r.engine.Changed()
		if r.engine.NothingRuns(ctx) {
			r.cfg.setup.Sweep(func(string) bool { return false }) // secrets are only for running tasks
			if r.cfg.RemoveOnShutdown {
				r.engine.RemoveRuns(ctx)
			}
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			r.cfg.Logger.Warn("the agent ends although some tasks did not stop", "waited", leaveLimit+killTimeout)
			return
		}
	}
}

// leave stops every task, waits until the master has received the end of each task, and
// sends the goodbye.
func (r *role) leave(ctx context.Context) {
	killTimeout, ok := r.engine.Leave(ctx)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit+killTimeout)
	defer cancel()
	for {
		changed, reports := r.engine.Changed(), r.reports.Changed()
		if r.engine.AllEnded(ctx) && (r.reports.AllAcknowledged() || !r.pool.Connected()) {
			break
		}
		select {
		case <-changed:
		case <-reports:
		case <-ctx.Done():
			r.cfg.Logger.Warn("the agent leaves although the master does not know the end of every task", "waited", leaveLimit+killTimeout)
			return
		}
	}
	r.pool.SayGoodbye(ctx)
}

// portsInUse tries to listen on ports. Only the error "in use" counts: the task may be
// allowed to open a port that this process may not.
func portsInUse(n network.Net, ports []int) map[int]bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out := map[int]bool{}
	for _, p := range ports {
		l, err := n.Listen(ctx, fmt.Sprintf(":%d", p))
		if err == nil {
			l.Close()
		}
		out[p] = errors.Is(err, syscall.EADDRINUSE)
	}
	return out
}

// taskPath returns the PATH of tasks: the agent's own PATH, or a usual one if the agent has
// none.
func taskPath() string {
	if p := os.Getenv("PATH"); p != "" {
		return p
	}
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// supervisorArgv returns the default of Config.SupervisorArgv.
func supervisorArgv(dataDir string, log *slog.Logger) ([]string, error) {
	argv, err := slim.Argv(filepath.Join(dataDir, "bin"))
	if err == nil {
		return argv, nil
	}
	log.Debug("the large executable of the agent is used as supervisor", "reason", err)
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable, to start supervisors: %w", err)
	}
	self, err = filepath.EvalSymlinks(self)
	if err != nil {
		return nil, fmt.Errorf("find this executable, to start supervisors: %w", err)
	}
	return []string{self, "supervise"}, nil
}

// discard returns the default logger.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
