package region

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// throughputInterval is the interval of watch messages when only the rate of
	// placements matters and not the latency of each.
	throughputInterval = 5 * time.Millisecond
	// connectWithin bounds the time in which all agents register.
	connectWithin = 2 * time.Minute
	// idleDelay is the pause before idle CPU is measured.
	idleDelay = time.Second
	// compareWithin bounds the comparison of the servers' states.
	compareWithin = time.Minute
	// infoWithin bounds the first call to a running region.
	infoWithin = 5 * time.Second
	// loadGC is GOGC of the load generator. It is high because the generator's garbage
	// must not take CPU time from the measured servers.
	loadGC = 400
)

// measurement is one call of Measure.
type measurement struct {
	o       Options
	r       *Result
	prefix  string
	region  string
	cluster *cluster // nil with Against
	master  *server
	fleet   *fleet
	load    *load.Callers
	// tables holds the tables of all submitted jobs, which clean purges.
	tables []*jobTable
	// jobsLeft and nodesLeft count what must still be removed from a running region.
	jobsLeft, nodesLeft atomic.Int64
	// left is the error that says what could not be removed.
	left error
	// begun is true when there are figures to print.
	begun bool
}

// Measure measures a region. When Measure returns an error, the result, if not nil, holds
// the figures measured before the error. Measure removes all jobs and nodes that it made;
// if it cannot, the error says which are left.
func Measure(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.emptyFor == 0 {
		o.emptyFor = defaultEmpty
	}
	defer debug.SetGCPercent(debug.SetGCPercent(loadGC))
	m := &measurement{o: o, prefix: "bench-" + report.RandomName(), r: &Result{
		Nodes: o.Nodes, Jobs: o.Jobs, Count: o.Count, Concurrency: o.Concurrency, Connections: o.Connections,
		Servers: o.Servers, Rate: o.Rate, TLS: o.TLS, Stream: o.Stream, NoAck: o.NoAck, Warmup: o.Warmup,
		FSync: true, // servers cannot run without fsync
	}}
	addr, err := m.find(ctx)
	if m.cluster != nil {
		defer m.cluster.close()
	}
	if err = interrupted(ctx, err); err == nil {
		err = m.connect(ctx, addr)
	}
	m.r.Incomplete = err != nil // an error of the removal does not make the figures incomplete
	switch {
	case m.left == nil:
	case err == nil, errors.Is(m.left, errTwice) && errors.Is(err, errInterrupted):
		err = m.left
	default:
		err = fmt.Errorf("%w; %w", err, m.left)
	}
	if !m.begun {
		return nil, err
	}
	return m.r, err
}

// find starts the servers, or asks the running server of Options.Against. It returns the
// address of the server that gets the load.
func (m *measurement) find(ctx context.Context) (string, error) {
	if m.o.Against != "" {
		return m.o.Against, m.askRegion(ctx)
	}
	var err error
	if m.r.Filesystem, m.r.FSync, err = report.Filesystem(m.o.Dir); err != nil {
		return "", err
	}
	if m.o.Profile != "" {
		if err := os.MkdirAll(m.o.Profile, 0o700); err != nil {
			return "", fmt.Errorf("--profile: %w", err)
		}
	}
	m.o.progress("starting %s", serversText(m.o.Servers))
	if m.cluster, err = startCluster(m.o); err != nil {
		return "", err
	}
	m.region = report.RegionName
	sync, err := report.SyncTimes(m.cluster.dir)
	if err != nil {
		return "", fmt.Errorf("--dir: %w", err)
	}
	m.r.DiskSyncMS = &sync
	if m.master, err = m.cluster.master(ctx); err != nil {
		return "", err
	}
	return m.master.addr, nil
}

// askRegion asks the running server for the name of its region.
func (m *measurement) askRegion(ctx context.Context) error {
	info, err := report.Ask(ctx, m.o.Against, "regional")
	if err != nil {
		return err
	}
	m.region, m.r.Servers = info.GetRegion(), 0
	return nil
}

// connect starts agents and callers, measures, and then ends the agents. On a running
// region it also removes the jobs and the nodes.
func (m *measurement) connect(ctx context.Context, addr string) (err error) {
	var secure *members
	if m.cluster != nil {
		secure = m.cluster.members
	}
	dial, err := secure.operator()
	if err != nil {
		return err
	}
	if m.load, err = load.New(m.o.load(), addr, m.o.Connections, dial...); err != nil {
		return err
	}
	defer m.load.Close()
	m.fleet = newFleet(m.o.Nodes, m.o.AgentsPerConnection, m.region, m.prefix, addr, m.o.instances(), m.o.NoAck)
	m.fleet.members = secure
	m.fleet.saysGoodbye = m.o.Against != ""
	// The removal may continue after the end of ctx, until giveUp is called.
	tidying, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	agents, leave := context.WithCancel(tidying)
	defer leave()
	// The first failure of an agent ends the measurement. The end of the measurement does
	// not end the agents, because the removal of the jobs needs them.
	g, agents := errgroup.WithContext(agents)
	g.Go(func() error { return m.fleet.run(agents, tidying) })
	measuring, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(agents, func() { cancel(context.Cause(agents)) })
	defer stop()
	err = interrupted(ctx, m.measure(measuring, addr))
	if m.o.Against != "" {
		m.count()
		defer m.announceRemoval(ctx, giveUp)()
		m.left = m.clean(tidying)
	}
	stop()
	leave()
	if failed := g.Wait(); failed != nil {
		err = failed // the agent's error caused the later one
	}
	if m.o.Against != "" {
		m.left = m.leftovers(errors.Join(m.left, m.forget(tidying)))
	}
	return err
}

// pool returns the pool that the jobs use: the pool of the simulated nodes, or the default
// pool if there are no simulated nodes.
func (m *measurement) pool() string {
	if m.o.Nodes == 0 {
		return ""
	}
	return m.prefix
}

// measure runs the steps of the measurement.
func (m *measurement) measure(ctx context.Context, addr string) error {
	start := time.Now()
	limited, cancel := report.Within(ctx, connectWithin, fmt.Errorf("not within %s", connectWithin))
	defer cancel()
	if err := m.fleet.await(limited, func(n int) { m.o.progress("%d of %d agents connected", n, m.o.Nodes) }); err != nil {
		return err
	}
	m.r.AgentsConnectSeconds = report.Seconds(time.Since(start))
	if m.o.Warmup > 0 {
		m.o.progress("warming up")
		if err := m.warmUp(ctx); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	m.o.progress("counting empty calls")
	var err error
	if m.r.EmptyCallsPerS, err = m.emptyCalls(ctx); err != nil {
		return err
	}
	if m.o.Rate > 0 {
		q, err := m.emptyPaced(ctx)
		if err != nil {
			return err
		}
		m.r.EmptyCallMS = &q
	}
	if err := m.timed(ctx); err != nil {
		return err
	}
	if m.o.Servers > 1 {
		if err := m.compare(ctx); err != nil {
			return err
		}
	}
	if m.o.Idle > 0 {
		if err := m.idle(ctx); err != nil {
			return err
		}
	}
	if m.o.Restart {
		return m.restart(ctx)
	}
	return nil
}

// compare makes the servers compare their states after the measurement.
func (m *measurement) compare(ctx context.Context) error {
	m.o.progress("comparing the servers")
	ctx, cancel := report.Within(ctx, compareWithin, fmt.Errorf("not within %s", compareWithin))
	defer cancel()
	v, err := nusav1.NewRegionsClient(m.load.Conns[0]).Verify(ctx, &nusav1.GetRegionRequest{})
	if err != nil {
		return fmt.Errorf("compare the servers: %w", report.Cause(ctx, err))
	}
	equal := v.GetEqual()
	m.r.StatesEqual, m.r.StatesIndex = &equal, v.GetIndex()
	if !equal {
		return fmt.Errorf("the servers do not hold the same at index %d: %v", v.GetIndex(), v.GetServers())
	}
	return nil
}

// warmUp places a few jobs of one instance.
func (m *measurement) warmUp(ctx context.Context) error {
	o := m.o.load()
	o.Rate = 0
	return m.submit(ctx, m.load.With(o), newJobTable(m.prefix+"w-", m.o.Warmup, 1), throughputInterval, nil)
}

// timed runs the jobs whose figures are the result.
func (m *measurement) timed(ctx context.Context) error {
	interval := throughputInterval
	if m.o.Rate > 0 {
		interval = 0
	}
	before, placed, after := cpuMark{}, cpuMark{}, cpuMark{}
	marks := map[string]*cpuMark{"begun": &before, "placed": &placed, "acknowledged": &after}
	b := newJobTable(m.prefix+"-", m.o.Jobs, m.o.Count)
	err := m.submit(ctx, m.load, b, interval, func(event string) error {
		if m.cluster == nil {
			return nil
		}
		var err error
		if *marks[event], err = m.cluster.mark(); m.o.Profile == "" {
			return err
		}
		switch event {
		case "begun":
			m.cluster.signal(syscall.SIGUSR1)
		case "acknowledged":
			m.cluster.signal(syscall.SIGUSR2)
		}
		return err
	})
	m.begun = true
	b.fill(m.r)
	m.r.Retries = m.load.Retries()
	if m.cluster == nil || err != nil {
		return err
	}
	return m.resources(before, placed, after)
}

// submit submits and watches the jobs of a table until all instances are placed and
// acknowledged. It calls tell with "begun" before the first submit, with "placed" and with
// "acknowledged".
func (m *measurement) submit(ctx context.Context, l *load.Callers, b *jobTable, interval time.Duration, tell func(string) error) error {
	m.tables = append(m.tables, b)
	if tell == nil {
		tell = func(string) error { return nil }
	}
	ctx, cancel := report.Within(ctx, m.o.Timeout, fmt.Errorf("not all within --timeout %s", m.o.Timeout))
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	g, ctx := errgroup.WithContext(ctx)
	watched, unwatch := context.WithCancel(ctx)
	defer unwatch()
	g.Go(func() error { return b.watch(watched, l.Client(0), interval) })
	g.Go(func() error {
		if err := m.stuck(watched, b); err != nil {
			giveUp(err)
		}
		return nil
	})
	g.Go(func() error {
		defer unwatch()
		if err := await(ctx, b.synced); err != nil {
			return err
		}
		if err := tell("begun"); err != nil {
			return err
		}
		submitting := make(chan error, 1)
		g.Go(func() error { submitting <- l.Submit(ctx, b.toSubmit(m.pool())); return nil })
		g.Go(func() error {
			m.show(watched, func() string {
				placed, running := b.sums()
				return fmt.Sprintf("%d placed, %d acknowledged of %d", placed, running, b.jobs*b.count)
			})
			return nil
		})
		if err := m.follow(ctx, b, submitting, tell); err != nil {
			placed, running := b.sums()
			return fmt.Errorf("%d of %d instances placed, %d acknowledged: %w", placed, b.jobs*b.count, running, err)
		}
		return nil
	})
	return g.Wait()
}

// follow waits until all jobs are stored and all instances are placed and acknowledged.
func (m *measurement) follow(ctx context.Context, b *jobTable, submitting <-chan error, tell func(string) error) error {
	if err := <-submitting; err != nil {
		return report.Cause(ctx, err)
	}
	if err := await(ctx, b.placed); err != nil {
		return err
	}
	if err := tell("placed"); err != nil {
		return err
	}
	if !m.o.NoAck {
		if err := await(ctx, b.running); err != nil {
			return err
		}
	}
	return tell("acknowledged")
}

func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// show prints progress until ctx ends.
func (m *measurement) show(ctx context.Context, line func() string) {
	const every = 200 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for awaitTick(ctx, tick.C) == nil {
		m.o.progress("%s", line())
	}
}

func awaitTick(ctx context.Context, tick <-chan time.Time) error {
	select {
	case <-tick:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
