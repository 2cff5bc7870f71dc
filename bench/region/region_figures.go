package region

import (
	"context"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
)

// cpuMark holds the CPU time that the servers and this process have used until one moment.
type cpuMark struct {
	at      time.Time
	servers []time.Duration
	own     time.Duration
}

func (c *cluster) mark() (cpuMark, error) {
	used, err := c.cpu()
	return cpuMark{at: time.Now(), servers: used, own: report.OwnCPU()}, err
}

// since returns the CPU time that all servers used since an earlier mark.
func (m cpuMark) since(earlier cpuMark) time.Duration {
	var sum time.Duration
	for i, used := range m.servers {
		sum += used - earlier.servers[i]
	}
	return sum
}

// resources notes the servers' CPU time and memory in the result.
func (m *measurement) resources(before, placed, after cpuMark) error {
	each := func(d time.Duration) *float64 {
		v := report.Round(float64(d.Microseconds())/float64(max(m.r.Placed, 1)), 2)
		return &v
	}
	m.r.ServerCPUUSPerPlacement = each(after.since(before))
	m.r.ServerCPUUSPerPlacementUntilPlaced = each(placed.since(before))
	m.r.LoadCPUSeconds = report.Round((after.own - before.own).Seconds(), 2)
	return m.peaks(before, after)
}

// peaks notes the peak memory of each server, and the largest of these, in the result.
func (m *measurement) peaks(before, after cpuMark) error {
	var largest float64
	m.r.PerServer = nil
	for i, s := range m.cluster.servers {
		peak, err := report.Memory(s.PID(), "status", "VmHWM:") // since the start of the server
		if err != nil {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
		largest = max(largest, peak)
		m.r.PerServer = append(m.r.PerServer, ServerFigures{
			Name: s.name, Master: s == m.master, PeakRSSMB: peak,
			CPUSeconds: report.Round((after.servers[i] - before.servers[i]).Seconds(), 2),
		})
	}
	m.r.ServerPeakRSSMB = &largest
	return nil
}

// idle measures the servers while only heartbeats and statistics arrive.
func (m *measurement) idle(ctx context.Context) error {
	m.o.progress("measuring the idle region for %s", m.o.Idle)
	pass := func(d time.Duration) error {
		t := time.NewTimer(d)
		defer t.Stop()
		return awaitTick(ctx, t.C)
	}
	if err := pass(idleDelay); err != nil {
		return err
	}
	before, err := m.cluster.mark()
	if err != nil {
		return err
	}
	if err := pass(m.o.Idle); err != nil {
		return err
	}
	after, err := m.cluster.mark()
	if err != nil {
		return err
	}
	passed := after.at.Sub(before.at)
	m.r.Idle = &IdleFigures{Seconds: report.Round(passed.Seconds(), 1), CPUCores: report.Round(after.since(before).Seconds()/passed.Seconds(), 4)}
	return nil
}

// restart kills the master and starts it again if it was the only server. It measures
// the time to the election, to the next placement, and until all agents are back.
func (m *measurement) restart(ctx context.Context) error {
	m.o.progress("killing the master")
	start := time.Now()
	m.master.Kill()
	m.master.down = len(m.cluster.servers) > 1
	if !m.master.down {
		if err := m.master.Start(); err != nil {
			return err
		}
	}
	master, err := m.cluster.master(ctx)
	if err != nil {
		return fmt.Errorf("after the master was killed: %w", err)
	}
	elected := time.Since(start)
	m.master = master
	m.fleet.setMaster(master.addr)
	dial, err := m.cluster.members.operator()
	if err != nil {
		return err
	}
	l, err := load.New(load.Options{Concurrency: 1}, master.addr, 1, dial...)
	if err != nil {
		return err
	}
	defer l.Close()
	var placed time.Duration
	b := newJobTable(m.prefix+"r-", 1, 1)
	err = m.submit(ctx, l, b, 0, func(event string) error {
		if event == "placed" {
			placed = time.Since(start)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("after the master was killed: %w", err)
	}
	ctx, cancel := report.Within(ctx, m.o.Timeout, fmt.Errorf("not within --timeout %s", m.o.Timeout))
	defer cancel()
	if err := m.fleet.await(ctx, func(n int) { m.o.progress("%d of %d agents are back", n, m.o.Nodes) }); err != nil {
		return err
	}
	m.r.Restart = &RestartFigures{
		ElectedMS: report.Milliseconds(elected), PlacedMS: report.Milliseconds(placed),
		PlacedAfterElectedMS: report.Milliseconds(placed - elected), AgentsBackMS: report.Milliseconds(time.Since(start)),
	}
	return nil
}
