package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/boottime"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// stopWithin bounds the time in which a process stops. Agents first stop their tasks,
	// which ignore the stop signal.
	stopWithin = 30 * time.Second
	// startWithin bounds the start of the federation and of the job.
	startWithin = time.Minute
	// stableFor is how long every instance must run exactly once before a round ends.
	stableFor = 2 * time.Second
	// pollEvery is the interval at which the files of the tasks are read.
	pollEvery = 50 * time.Millisecond
)

// Options of a measurement.
type Options struct {
	// Rounds is how often a region is cut off.
	Rounds int
	// Running is disconnect.region.running of the job: keep or stop.
	Running string
	// After is disconnect.region.after of the job. Lease is the lease of regions.
	// KillTimeout is kill_timeout of the job's task, which ignores the stop signal.
	After, Lease, KillTimeout time.Duration
	// Instances is the count of the job, Regions the number of regions.
	Instances, Regions int
	// Timeout bounds each wait of a round.
	Timeout time.Duration
	// Dir is the parent of the temporary folder.
	Dir string
	// Executable serves the roles and the task; default: this program.
	Executable string
	// Progress shows a line of text; "" ends the line. It may be nil.
	Progress func(string)
}

// Measure starts a federation and cuts off regions one after another. When Measure returns
// an error after the first round began, the result holds the figures up to the error.
func Measure(ctx context.Context, o Options) (_ *Result, err error) {
	f, err := startFleet(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	m := &measurement{o: o, f: f, r: &Result{
		Running: o.Running, Instances: o.Instances, Regions: o.Regions,
		AfterSeconds: o.After.Seconds(), LeaseSeconds: o.Lease.Seconds(), KillTimeoutSeconds: o.KillTimeout.Seconds(),
	}}
	m.progress("the federation starts")
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	for n := range o.Rounds {
		if err := m.round(ctx, n+1); err != nil {
			m.finish()
			return m.r, fmt.Errorf("round %d: %w", n+1, err)
		}
	}
	m.finish()
	return m.r, nil
}

// measurement is a measurement in progress.
type measurement struct {
	o Options
	f *fleet
	r *Result

	moved, healed []time.Duration
	doubled       time.Duration
}

func (m *measurement) progress(format string, args ...any) {
	if m.o.Progress != nil {
		m.o.Progress(fmt.Sprintf(format, args...))
	}
}

func (m *measurement) finish() {
	m.r.Rounds = len(m.healed)
	m.r.CutToRunningMS, m.r.HealToOnceMS = spreadOf(m.moved), spreadOf(m.healed)
	m.r.TwiceMS.Max = report.Milliseconds(m.doubled)
}

// begin submits the job when every region has a ready node. Then it waits until every
// instance runs.
func (m *measurement) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("the federation did not start within %s", startWithin))
	defer cancel()
	regions := nusav1.NewRegionsClient(m.f.conn)
	err := m.until(ctx, func() (bool, error) {
		res, err := regions.List(ctx, &nusav1.ListRegionsRequest{}, grpc.WaitForReady(true))
		ready := 0
		for _, r := range res.GetRegions() {
			if r.GetReport().GetNodesReady() > 0 {
				ready++
			}
		}
		return err == nil && ready == m.o.Regions, nil
	})
	if err != nil {
		return err
	}
	if _, err := nusav1.NewJobsClient(m.f.conn).Submit(ctx, &nusav1.SubmitRequest{Spec: m.spec()}); err != nil {
		return fmt.Errorf("submit the job: %w", err)
	}
	return m.untilOnce(ctx)
}

// spec returns the measured job: its instances are divided evenly among the regions.
func (m *measurement) spec() *nusav1.JobSpec {
	keep := nusav1.Running_RUNNING_KEEP
	if m.o.Running == "stop" {
		keep = nusav1.Running_RUNNING_STOP
	}
	config, _ := structpb.NewStruct(map[string]any{ // cannot fail: strings and a list of strings
		"command": m.f.exe, "args": []any{"bench", "failover-task", m.f.tasks},
	})
	replace, count := true, int32(m.o.Instances)
	return &nusav1.JobSpec{
		Name: "failover", Type: nusav1.JobType_JOB_TYPE_SERVICE,
		Regions: &nusav1.RegionsSpec{Divide: nusav1.Divide_DIVIDE_EVEN, Spread: &nusav1.RegionSpread{Max: int32(m.o.Regions)}},
		Groups: map[string]*nusav1.Group{"clock": {
			Count:      &count,
			Disconnect: &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{After: durationpb.New(m.o.After), Running: keep, Replace: &replace}},
			Tasks: map[string]*nusav1.Task{"clock": {
				Driver: "process", Config: config, KillTimeout: durationpb.New(m.o.KillTimeout),
				Resources: &nusav1.Resources{CpuMilli: 20, MemoryBytes: 16 << 20},
			}},
		}},
	}
}

// round cuts off the region with the most instances and waits until these run elsewhere.
// Then it ends the cut, and waits until every instance runs exactly once.
func (m *measurement) round(ctx context.Context, number int) error {
	runs, err := readRuns(m.f.tasks)
	if err != nil {
		return err
	}
	region, indices := m.busiest(running(runs, boottime.Now()))
	m.progress("round %d of %d: %s with %d instances is cut off", number, m.o.Rounds, region, len(indices))
	cut := boottime.Now()
	m.f.proxies[region].cut()
	var took time.Duration
	err = m.waitFor(ctx, "instances did not run elsewhere", func() (bool, error) {
		runs, err = readRuns(m.f.tasks)
		moved := false
		took, moved = movedAfter(runs, indices, region, cut)
		return moved, err
	})
	if err != nil {
		return err
	}
	m.moved = append(m.moved, took)
	m.progress("round %d of %d: moved after %s, %s returns", number, m.o.Rounds, took.Round(time.Millisecond), region)
	heal := boottime.Now()
	m.f.proxies[region].heal()
	err = m.waitFor(ctx, "instances did not run exactly once after the cut", func() (bool, error) { return m.stableOnce() })
	runs, readErr := readRuns(m.f.tasks)
	if err := errors.Join(err, readErr); err != nil {
		m.r.Missing += missing(runs, m.o.Instances, boottime.Now())
		return err
	}
	m.healed = append(m.healed, changedAfter(runs, heal, boottime.Now()))
	m.doubled = max(m.doubled, twice(runs, cut))
	m.r.Missing += missing(runs, m.o.Instances, boottime.Now())
	return nil
}

// busiest returns the region with the most running instances, and their indices.
func (m *measurement) busiest(alive []run) (string, []int) {
	best, most := "", []int(nil)
	for _, region := range m.f.regions {
		if indices := indicesIn(alive, region); len(indices) > len(most) {
			best, most = region, indices
		}
	}
	return best, most
}

// stableOnce reports whether every instance has run exactly once, without a change, for
// longer than stableFor.
func (m *measurement) stableOnce() (bool, error) {
	runs, err := readRuns(m.f.tasks)
	now := boottime.Now()
	if err != nil || !once(runs, m.o.Instances, now) {
		return false, err
	}
	return now-changedAfter(runs, 0, now) > stableFor, nil
}

func (m *measurement) untilOnce(ctx context.Context) error {
	return m.until(ctx, func() (bool, error) { return m.stableOnce() })
}

// waitFor polls done for at most Options.Timeout. what begins the text of the error.
func (m *measurement) waitFor(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.o.Timeout, fmt.Errorf("%s within %s", what, m.o.Timeout))
	defer cancel()
	return m.until(ctx, done)
}

// until polls done until it returns true or an error, a process of the fleet ends, or ctx
// ends.
func (m *measurement) until(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := m.f.died(); err != nil {
			return err
		}
		if err := report.Pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}
