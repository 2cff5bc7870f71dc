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

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/supervise/slim"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Addresses of a running agent.
type Addresses struct {
	// NodeID is the stable UUID of the node.
	NodeID string
	// HTTP address, empty when none is served.
	HTTP string
}

// leaveLimit is how long a leaving or pausing agent waits, beyond the tasks' own
// kill timeouts, until everything has stopped and, leaving, the master knows.
const leaveLimit = 15 * time.Second

// Run is the agent: it blocks until ctx ends (nil) or the first fatal error.
// Everything it started has ended when it returns, but for the tasks and their
// supervisors, which go on unless LeaveOnShutdown or PauseOnShutdown.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return err
	}
	dir, err := serve.OpenDataDir(cfg.DataDir, "agent/"+cfg.Region, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	// Drivers keep files in the directory: not before it is ours.
	if cfg, err = cfg.withParts(); err != nil {
		return err
	}
	defer cfg.closeDrivers()
	st, err := openStore(dir.Path("agent.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	held, err := st.load()
	if err != nil {
		return fmt.Errorf("local store: %w", err)
	}
	line, err := st.timeline(cfg.BootID, cfg.Clock, held)
	if err != nil {
		return err
	}
	inv, err := newInventory(ctx, cfg, cfg.Logger)
	if err != nil {
		return err
	}
	r, err := assemble(cfg, dir, st, held, line, inv)
	if err != nil {
		return err
	}
	web, err := serve.Open(ctx, serve.Options{Net: cfg.Net, Logger: cfg.Logger, HTTPAddr: cfg.HTTPAddr, SmallBuffers: cfg.Share < 1,
		Ready: func() error {
			if !r.pool.connected() {
				return errNotConnected
			}
			return nil
		}})
	if err != nil {
		return err
	}
	r.engine.metrics.register(web.Registry)
	return r.run(ctx, web)
}

// errNotConnected is shown by /readyz. Tasks run on meanwhile.
var errNotConnected = errors.New("no session with the region's master")

// role is the parts of a running agent.
type role struct {
	cfg    Config
	engine *engine
	keeper *keeper
	pool   *pool
	inv    *inventory
}

// assemble puts the parts together; nothing runs yet.
func assemble(cfg Config, dir *serve.DataDir, st *store, held contents, line timeline, inv *inventory) (*role, error) {
	e := &engine{
		log: cfg.Logger, clock: cfg.Clock, line: line, drivers: cfg.Drivers, store: st,
		node: node{id: st.node, region: cfg.Region, allocsDir: dir.Path(allocsDir), path: taskPath(),
			processUser: cfg.ProcessUser, setup: cfg.setup},
		reports: newReports(st), keeper: newKeeper(st, cfg.Logger), inventory: inv, metrics: newMetrics(),
		portsInUse: func(ports []int) map[int]bool { return portsInUse(cfg.Net, ports) },
		keptLogs:   cfg.KeptLogs, keptFolders: cfg.KeptFolders,
		events: make(chan func(), maxEvents), ready: make(chan struct{}), changed: newPulse(), allocs: map[string]*alloc{}, answers: map[driver.ID]answer{},
	}
	// What waited for the store is published now.
	e.keeper.written = func(ctx context.Context) { e.do(ctx, func() {}) }
	c := inv.get().GetCapacity()
	e.node.reach = reach{dial: cfg.Net.Dial, elsewhere: cfg.elsewhere, own: inv.address, drivers: cfg.Drivers}
	e.host = reconcile.Host{CPUMilli: c.GetCpuMilli(), MemoryBytes: c.GetMemoryBytes(), DiskBytes: c.GetDiskBytes(),
		Quota: cfg.InstanceQuota, MaxStarting: maxStarting}
	inv.tell(&e.host.Drivers)
	if err := e.load(held); err != nil {
		return nil, fmt.Errorf("local store: %w", err)
	}
	cfg.setup.Sweep(func(id string) bool { a := e.allocs[id]; return a != nil && a.act.End == nil })
	return &role{cfg: cfg, engine: e, keeper: e.keeper, inv: inv, pool: newPool(cfg, cfg.Logger, e, inv, dir, held)}, nil
}

// run until ctx ends, in this order at the end: leave or pause if wanted, then
// sessions and engine together, then what is left to write.
func (r *role) run(ctx context.Context, web *serve.Server) error {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(inner)
	calls := grpc.NewServer()
	nusav1.RegisterAllocationsServer(calls, newAllocations(r.engine))
	g.Go(func() error { return r.engine.run(gctx) })
	g.Go(func() error { return r.keeper.run(gctx) })
	if r.cfg.Shrink {
		g.Go(func() error { return r.engine.shrink(gctx, giveBack) })
	}
	g.Go(func() error { return r.inv.run(gctx, r.engine) })
	g.Go(func() error {
		select {
		case <-r.engine.ready:
			return r.pool.run(gctx)
		case <-gctx.Done():
			return nil
		}
	})
	g.Go(func() error { return web.Run(gctx) })
	g.Go(func() error { return calls.Serve(r.pool.tunnels) })
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
	case <-r.engine.ready:
		r.cfg.Logger.Info("agent runs", "node", r.engine.node.id, "region", r.cfg.Region, "http", web.HTTPAddr())
		if r.cfg.Ready != nil {
			r.cfg.Ready(Addresses{NodeID: r.engine.node.id, HTTP: web.HTTPAddr()})
		}
	case <-gctx.Done():
	}
	err := g.Wait()
	return errors.Join(err, r.keeper.flush())
}

// begin has the engine note how it ends and returns how long that may take.
func (r *role) begin(ctx context.Context, end *bool) (limit time.Duration, ok bool) {
	limit = leaveLimit
	ok = r.engine.do(ctx, func() {
		*end = true
		for _, a := range r.engine.allocs {
			for _, t := range a.alloc.Tasks {
				limit = max(limit, leaveLimit+t.KillTimeout)
			}
		}
	})
	return limit, ok
}

// pause stops every task and changes nothing else: no record and no report says
// that it ended. The sessions stay until then, or the node would be lost and
// its work placed elsewhere while a task takes its time to end.
func (r *role) pause(ctx context.Context) {
	limit, ok := r.begin(ctx, &r.engine.host.Pausing)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		changed, quiet := r.engine.changed.next(), true
		r.engine.do(ctx, func() {
			for _, a := range r.engine.allocs {
				quiet = quiet && reconcile.NothingRuns(a.act)
			}
		})
		if quiet && ctx.Err() == nil {
			r.cfg.setup.Sweep(func(string) bool { return false }) // secrets are for what runs
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			r.cfg.Logger.Warn("ends with tasks that did not stop", "waited", limit)
			return
		}
	}
}

// leave stops every task, waits until the master knows, and says goodbye.
func (r *role) leave(ctx context.Context) {
	limit, ok := r.begin(ctx, &r.engine.host.Leaving)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		changed, grown := r.engine.changed.next(), r.engine.reports.grown.next()
		over := true
		r.engine.do(ctx, func() {
			for _, a := range r.engine.allocs {
				over = over && a.act.End != nil
			}
		})
		if over && (r.engine.reports.settled() || !r.pool.connected()) {
			break
		}
		select {
		case <-changed:
		case <-grown:
		case <-ctx.Done():
			r.cfg.Logger.Warn("left without the master knowing everything", "waited", limit)
			return
		}
	}
	r.pool.sayGoodbye(ctx)
}

// portsInUse tries to listen. Only "in use" counts: a port that this process
// may not open may be fine for the task.
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

// taskPath is the PATH that tasks get: the agent's own, or the usual one.
func taskPath() string {
	if p := os.Getenv("PATH"); p != "" {
		return p
	}
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// supervisorArgv is the default of Config.SupervisorArgv.
func supervisorArgv(dataDir string, log *slog.Logger) ([]string, error) {
	argv, err := slim.Argv(filepath.Join(dataDir, "bin"))
	if err == nil {
		return argv, nil
	}
	log.Debug("supervisors are this executable, which is large", "reason", err)
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable, to start supervisors: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return nil, fmt.Errorf("find this executable, to start supervisors: %w", err)
	}
	return []string{self, "supervise"}, nil
}

// discard is the default logger.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
