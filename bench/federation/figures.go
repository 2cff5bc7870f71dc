package federation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
)

const (
	// The traffic of connecting has ended when each region gets on average less than
	// quietBytes during quietTime, in which every region reports once. A region at rest gets
	// a third of that. quietWithin bounds the wait for this.
	quietTime   = 6 * time.Second
	quietBytes  = 1200
	quietWithin = time.Minute
	// idleDelay is the pause before the idle server is measured.
	idleDelay = time.Second
	// idleUnit is the unit of the traffic of an idle region: bytes in five seconds.
	idleUnit = 5 * time.Second
	// restartWithin bounds the time from the kill of the server to its first decision.
	restartWithin = 5 * time.Minute
	mega          = 1e6
)

// connect waits until all regions, which start at once, are connected and quiet.
func (m *measurement) connect(ctx context.Context) error {
	ctx, cancel := report.Within(ctx, m.o.Timeout, fmt.Errorf("not within --timeout %s", m.o.Timeout))
	defer cancel()
	start := time.Now()
	err := m.fleet.AwaitConnected(ctx, func(n int) { m.o.progress("%d of %d regions connected", n, m.o.Regions) })
	if err != nil {
		return err
	}
	m.r.ConnectS = report.Seconds(time.Since(start))
	m.o.progress("waiting for the regions' round trips")
	if err := m.fleet.RefreshRows(ctx); err != nil {
		return err
	}
	if err := m.quiet(ctx); err != nil {
		return err
	}
	down, up := m.fleet.Bytes()
	m.r.ConnectMB = Traffic{Down: report.Round(float64(down)/mega, 3), Up: report.Round(float64(up)/mega, 3)}
	m.r.ConnectMemory, err = m.memory()
	return err
}

// memory returns the present memory of the server's process. It is nil for a server that
// this process did not start.
func (m *measurement) memory() (*Memory, error) {
	if m.server == nil {
		return nil, nil
	}
	out := &Memory{}
	for key, value := range map[string]*float64{"VmRSS:": &out.RSSMB, "RssAnon:": &out.OwnMB} {
		var err error
		*value, err = report.Memory(m.server.PID(), "status", key)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// quiet waits until the traffic of connecting has ended.
func (m *measurement) quiet(ctx context.Context) error {
	m.o.progress("waiting for the lists of regions")
	for end := time.Now().Add(quietWithin); time.Now().Before(end); {
		before, _ := m.fleet.Bytes()
		if err := report.Pause(ctx, quietTime); err != nil {
			return err
		}
		if after, _ := m.fleet.Bytes(); after-before < quietBytes*int64(m.o.Regions) {
			return nil
		}
	}
	m.o.say("the traffic of connecting did not end within %s", quietWithin)
	return nil
}

// mark holds the CPU time and the bytes written of the server's process at one moment.
type mark struct {
	cpu     time.Duration
	written int64
}

// mark reads the present mark. It is zero for a server that this process did not start.
func (m *measurement) mark() (out mark, err error) {
	if m.server == nil {
		return out, nil
	}
	out.cpu, err = report.CPUTime(m.server.PID())
	if err == nil {
		out.written, err = report.BytesWritten(m.server.PID())
	}
	return out, errors.Join(err, m.server.Died())
}

// resources notes in a result what the server's process has used since a mark.
func (m *measurement) resources(before mark, r *Result) error {
	if m.server == nil {
		return nil
	}
	after, err := m.mark()
	if err != nil {
		return err
	}
	peak, err := report.Memory(m.server.PID(), "status", "VmHWM:")
	if err != nil {
		return err
	}
	cpu := report.Round(float64((after.cpu-before.cpu).Microseconds())/float64(m.o.Jobs), 1)
	written := report.Round(float64(after.written-before.written)/float64(m.o.Jobs), 0)
	r.ServerCPUUSPerJob, r.BytesWrittenPerJob, r.ServerPeakRSSMB = &cpu, &written, &peak
	return nil
}

// signal sends a profiled server the signal to begin or end its profile.
func (m *measurement) signal(s syscall.Signal) {
	if m.server != nil && m.o.Profile != "" {
		m.server.Signal(s)
	}
}

// profileWithin bounds the time in which a server writes its profiles.
const profileWithin = 30 * time.Second

// profiled waits until the server has written its profiles.
func (m *measurement) profiled(ctx context.Context) error {
	if m.server == nil || m.o.Profile == "" {
		return nil
	}
	ctx, cancel := report.Within(ctx, profileWithin, fmt.Errorf("no profile within %s", profileWithin))
	defer cancel()
	for {
		if _, err := os.Stat(m.server.profile + ".heap"); err == nil {
			return nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := report.Pause(ctx, report.PollEvery); err != nil {
			return err
		}
	}
}

// idle measures the server and the traffic while no jobs are submitted.
func (m *measurement) idle(ctx context.Context) error {
	m.o.progress("measuring %s without submits", m.o.Idle)
	if err := report.Pause(ctx, idleDelay); err != nil {
		return err
	}
	before, err := m.mark()
	if err != nil {
		return err
	}
	start := time.Now()
	down, up := m.fleet.Bytes()
	if err := report.Pause(ctx, m.o.Idle); err != nil {
		return err
	}
	took := time.Since(start)
	downTo, upTo := m.fleet.Bytes()
	each := func(bytes int64) float64 {
		return report.Round(float64(bytes)/float64(m.o.Regions)*idleUnit.Seconds()/took.Seconds(), 0)
	}
	m.r.Idle = &Idle{DownBytes: each(downTo - down), UpBytes: each(upTo - up)}
	if m.server == nil {
		return nil
	}
	after, err := m.mark()
	if err != nil {
		return err
	}
	cores := report.Round((after.cpu-before.cpu).Seconds()/took.Seconds(), 4)
	m.r.Idle.Cores = &cores
	m.r.Idle.Memory, err = m.memory()
	return err
}

// copyData copies the data of the killed server for restartParts. The data after the restart would not do: a member
// opens it in half of the time.
func (m *measurement) copyData() error {
	if m.bare || m.o.Etcd == 0 {
		return nil
	}
	return os.CopyFS(filepath.Join(m.server.dir, "copy", "member"), os.DirFS(filepath.Join(m.server.dir, "data", "etcd", "member")))
}

// restartParts ends the server, and measures the parts of a restart with the copied data. Before the restart, that
// would make the regions wait longer and longer.
func (m *measurement) restartParts(ctx context.Context) (err error) {
	if m.bare || m.o.Etcd == 0 {
		return nil
	}
	m.server.Kill()
	if m.r.RestartParts, err = m.readAlone(ctx, filepath.Join(m.server.dir, "copy")); err != nil {
		return fmt.Errorf("parts of the restart: %w", err)
	}
	return nil
}

// restart kills the server, starts it again, and waits until it decides.
func (m *measurement) restart(ctx context.Context) error {
	ctx, cancel := report.Within(ctx, restartWithin, fmt.Errorf("not within %s", restartWithin))
	defer cancel()
	m.o.progress("restarting %s", m.server.Name)
	m.server.Kill()
	if err := m.copyData(); err != nil {
		return err
	}
	if m.o.Profile != "" {
		m.server.profiledTo(filepath.Join(m.o.Profile, "restart"), "--start")
	}
	start := time.Now()
	err := m.server.Start()
	if err != nil {
		return err
	}
	if err := m.server.awaitActive(ctx); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	m.r.ServingS = report.Seconds(time.Since(start))
	if err := m.submit(ctx, m.load.With(load.Options{Concurrency: 1}), m.after, nil); err != nil {
		return fmt.Errorf("first job after the restart: %w", err)
	}
	decided := report.Seconds(m.after.offeredTime().Sub(start))
	m.r.RestartS = &decided
	m.r.RestartMemory, err = m.memory()
	m.signal(syscall.SIGUSR2)
	return errors.Join(err, m.profiled(ctx))
}
