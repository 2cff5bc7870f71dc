package federation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// warmups is how many jobs are placed before the measured jobs. There are enough for
	// every kind in every size.
	warmups = 96
	// connections is the number of connections, which the callers share.
	connections = 4
	// loadGC is GOGC of this process. It is high because the garbage of the emulated
	// regions and callers must not take CPU time from the measured server.
	loadGC = 400
)

var errInterrupted = errors.New("interrupted")

// measurement is one call of Measure.
type measurement struct {
	o    Options
	r    *Result
	exe  string
	name string // begins the names of the jobs
	addr string
	// server is nil if Options.Against names a running server.
	server *server
	// bare: server is the bare parts.
	bare  bool
	fleet *emulate.Fleet
	load  *load.Callers
	// warm, timed and after hold the jobs of the warm-up, of the measurement, and after
	// the restart. fill and again hold the jobs of Options.Stored, and those of the measurement
	// that follows.
	warm, timed, after, fill, again *table
	// begun: the measured submits have begun, so there are figures to print.
	begun bool
}

// Measure measures a federation, Options.Rounds times. When Measure returns an error, the result, if not nil,
// holds the figures measured before the error.
func Measure(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(loadGC))
	var rounds []*Result
	for n := range max(o.Rounds, 1) {
		if o.Rounds > 1 {
			o.say("round %d of %d", n+1, o.Rounds)
		}
		m := newMeasurement(o)
		err := m.run(ctx)
		if ctx.Err() != nil {
			err = errInterrupted
		}
		m.r.Incomplete = err != nil
		if m.begun {
			rounds = append(rounds, m.r)
		}
		switch {
		case err != nil && len(rounds) == 0:
			return nil, err
		case err != nil:
			return middle(rounds), err
		}
	}
	return middle(rounds), nil
}

func newMeasurement(o Options) *measurement {
	return &measurement{o: o, exe: o.Executable, name: "bench-" + report.RandomName(), r: &Result{
		Regions: o.Regions, Jobs: o.Jobs, Concurrency: o.Concurrency, Stream: o.Stream, Rate: o.Rate,
	}}
}

func (m *measurement) run(ctx context.Context) error {
	if m.o.Against != "" {
		m.addr = m.o.Against
		if err := m.askServer(ctx); err != nil {
			return err
		}
		return m.federate(ctx)
	}
	if m.exe == "" {
		var err error
		if m.exe, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	var durable bool
	var err error
	if m.r.Filesystem, durable, err = report.Filesystem(m.o.Dir); err != nil {
		return err
	}
	if !durable {
		m.o.say("--dir: %s keeps files in memory, so fsync costs nothing", m.r.Filesystem)
	}
	before, err := m.etcdAlone(ctx)
	if err != nil {
		return err
	}
	if err := m.serve(ctx); err != nil {
		return err
	}
	if err := m.parts(ctx); err != nil {
		return err
	}
	after, err := m.etcdAlone(ctx) // the machine's speed may have changed
	if err == nil && m.o.Etcd > 0 {
		mean := report.Round((before+after)/2, 1)
		m.r.EtcdJobsPerS = &mean
	}
	return err
}

// parts measures the bare parts with the same options, and compares them with the server.
func (m *measurement) parts(ctx context.Context) error {
	if m.o.Parts == 0 {
		return nil
	}
	o := m.o
	o.Jobs, o.History = m.o.Parts, 0
	if o.Profile != "" {
		o.Profile = filepath.Join(o.Profile, "parts")
	}
	p := newMeasurement(o)
	p.exe, p.bare = m.exe, true
	if err := p.serve(ctx); err != nil {
		return fmt.Errorf("the bare parts: %w", err)
	}
	m.r.Parts, m.r.Ratios = p.r, ratiosOf(m.r, p.r)
	return nil
}

// serve starts a server and measures it.
func (m *measurement) serve(ctx context.Context) error {
	if m.o.Profile != "" {
		if err := os.MkdirAll(m.o.Profile, 0o700); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
	}
	var err error
	if m.server, err = startServer(m.o, m.exe, m.bare); err != nil {
		return err
	}
	m.o.progress("%s is starting", m.server.Name)
	defer m.server.close()
	m.addr = m.server.addr
	if err := m.server.awaitActive(ctx); err != nil {
		return err
	}
	err = m.federate(ctx)
	if died := m.server.Died(); died != nil && ctx.Err() == nil {
		return died // the cause of the error
	}
	if err == nil {
		err = m.restartParts(ctx)
	}
	return err
}

// askServer checks that the server of Options.Against is the active global server.
func (m *measurement) askServer(ctx context.Context) error {
	info, err := report.Ask(ctx, m.addr, "global")
	if err == nil && !info.GetLeader() {
		err = fmt.Errorf("--against %s: is not the active global server, name %s", m.addr, info.GetLeaderAddress())
	}
	return err
}

// federate starts the regions and the callers, measures, and ends both.
func (m *measurement) federate(ctx context.Context) error {
	cfg := emulate.Config{
		Addr: m.addr, Regions: m.o.Regions, Nodes: nodesFor(m.o.Jobs+m.o.Stored, m.o.Regions), Ask: m.ask,
		Offered: func(s *nusav1.Slot, at time.Time) {
			for _, b := range m.tables() {
				b.noteOffered(s, at)
			}
		},
		Accepted: func(s *nusav1.Slot, at time.Time) {
			for _, b := range m.tables() {
				b.noteAccepted(s, at)
			}
		},
	}
	only := ""
	if m.o.Against != "" {
		only, cfg.Prefix, cfg.Labels = m.name, m.name+"-", map[string]string{label: m.name}
	}
	m.fleet = emulate.New(cfg)
	names := m.fleet.Names()
	m.warm = newTable(newJobSet(m.name+"-w", names, only), min(warmups, m.o.Jobs))
	m.timed = newTable(newJobSet(m.name+"-j", names, only), m.o.Jobs)
	m.after = newTable(newJobSet(m.name+"-a", names, only), 1)
	m.fill = newTable(newJobSet(m.name+"-s", names, only), m.o.Stored)
	m.again = newTable(newJobSet(m.name+"-g", names, only), m.o.Jobs)
	var err error
	if m.load, err = load.New(m.o.load(), m.addr, min(connections, m.o.Concurrency)); err != nil {
		return err
	}
	defer m.load.Close()
	// The regions outlive ctx, because clean needs them. The measurement ends when a
	// region is refused permanently.
	regions, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	measuring, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var g errgroup.Group
	g.Go(func() error {
		err := m.fleet.Run(regions)
		if err != nil {
			fail(err)
		}
		return err
	})
	err = m.steps(measuring)
	if m.o.Against != "" {
		err = errors.Join(err, m.clean(regions))
	}
	leave()
	if refused := g.Wait(); refused != nil {
		return refused // it caused the later error
	}
	return err
}

func (m *measurement) tables() [5]*table { return [5]*table{m.timed, m.warm, m.after, m.fill, m.again} }

// ask returns what an instance of a job of the measurement reserves; 0 for another job.
func (m *measurement) ask(job string) (cpuMilli, memoryBytes int64) {
	for _, b := range m.tables() {
		if i, ours := b.index(job); ours {
			return ask(sizeOf(i))
		}
	}
	return 0, 0
}

// steps runs the steps of the measurement.
func (m *measurement) steps(ctx context.Context) error {
	if err := m.connect(ctx); err != nil {
		return err
	}
	m.o.progress("warming up")
	if err := m.submit(ctx, m.load.With(load.Options{Concurrency: m.o.Concurrency}), m.warm, nil); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	m.begun = true
	if err := m.measureProfiled(ctx, m.o.Stored == 0, m.timed, m.r); err != nil {
		return err
	}
	if m.o.Idle > 0 {
		if err := m.idle(ctx); err != nil {
			return err
		}
	}
	if err := measureStored(ctx, m); err != nil {
		return err
	}
	m.r.Ended = m.fleet.Ended()
	if m.r.Ended > 0 {
		m.o.say("the server ended sessions of regions: %d", m.r.Ended)
	}
	if m.server == nil {
		return nil
	}
	if err := m.fillHistory(ctx); err != nil {
		return err
	}
	if err := m.restart(ctx); err != nil {
		return err
	}
	return m.lists(ctx)
}

// measureProfiled is measure, with profiles of the server if there is a folder for them.
func (m *measurement) measureProfiled(ctx context.Context, profile bool, b *table, r *Result) error {
	if !profile {
		return m.measure(ctx, b, r)
	}
	m.signal(syscall.SIGUSR1)
	err := m.measure(ctx, b, r)
	m.signal(syscall.SIGUSR2)
	if err != nil {
		return err
	}
	return m.profiled(ctx)
}

// measure submits the jobs of a table, and notes their figures in a result.
func (m *measurement) measure(ctx context.Context, b *table, r *Result) error {
	ctx, cancel := report.Within(ctx, m.o.Timeout, fmt.Errorf("not all within --timeout %s", m.o.Timeout))
	defer cancel()
	w := newWatches(ctx, b, m.load.Client)
	before, err := m.mark()
	if err != nil {
		return err
	}
	own := report.OwnCPU()
	showing, shown := context.WithCancel(ctx)
	var show errgroup.Group
	show.Go(func() error { m.show(showing, b); return nil })
	err = m.submit(ctx, m.load, b, w.begin)
	if err != nil {
		cancel() // the watches end too
	}
	err = errors.Join(err, w.wait())
	shown()
	_ = show.Wait()
	r.LoadCPUSeconds = report.Seconds(report.OwnCPU() - own)
	b.fill(r)
	r.Retries = m.load.Retries()
	if err != nil {
		return fmt.Errorf("%d of %d slots decided, %d accepted: %w", r.Decided, r.Slots, r.Accepted, err)
	}
	return m.resources(before, r)
}

// submit submits the jobs of a table and waits until all their slots are offered and
// accepted. It calls answered, if not nil, for each job when the job is stored.
func (m *measurement) submit(ctx context.Context, l *load.Callers, b *table, answered func(int)) error {
	if err := l.Submit(ctx, b.toSubmit(answered)); err != nil {
		return report.Cause(ctx, err)
	}
	for _, done := range []chan struct{}{b.offered, b.accepted} {
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// show prints progress until ctx ends.
func (m *measurement) show(ctx context.Context, b *table) {
	const every = 200 * time.Millisecond
	for report.Pause(ctx, every) == nil {
		offered, accepted := b.sums()
		m.o.progress("%d slots decided, %d accepted of %d", offered, accepted, b.slots)
	}
}
