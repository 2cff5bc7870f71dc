package failover

import (
	"context"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// pageJobs is the number of jobs of one page of a list.
	pageJobs = 1000
	// calm is the pause before the cut, in which every region reports once.
	calm = 6 * time.Second
)

// Moves holds the figures of one lost region with many instances.
type Moves struct {
	// CutToLostMS is the time from the cut until the server declared the region lost, which is
	// when the slots are due.
	CutToLostMS float64 `json:"cut_to_lost_ms"`
	// The following times begin when the region is declared lost. They end when the other
	// regions have the offers of all slots, when the store has all acceptances, and when a
	// list of all jobs shows that each runs with all its instances.
	LostToOfferedMS  float64 `json:"lost_to_offered_ms"`
	LostToAcceptedMS float64 `json:"lost_to_accepted_ms"`
	LostToRunningMS  float64 `json:"lost_to_running_ms"`
	// Missing counts the instances that no other region got within the time.
	Missing int `json:"missing"`
	// ServerCPUSeconds is the CPU time of the server from the cut on. ServerPeakRSSMB is the
	// greatest resident memory of the server so far.
	ServerCPUSeconds float64 `json:"server_cpu_s"`
	ServerPeakRSSMB  float64 `json:"server_peak_rss_mb"`

	Instances    int     `json:"instances"`
	Regions      int     `json:"regions"`
	AfterSeconds float64 `json:"after_s"`
	LeaseSeconds float64 `json:"lease_s"`
}

// Table prints the figures for people.
func (r *Moves) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d jobs of one instance in one of %d emulated regions, after %gs, lease %gs\n", r.Instances, r.Regions, r.AfterSeconds, r.LeaseSeconds)
	fmt.Fprintf(t, "cut → region lost\t%.0f ms\n", r.CutToLostMS)
	fmt.Fprintf(t, "lost → all offered elsewhere\t%.0f ms\n", r.LostToOfferedMS)
	fmt.Fprintf(t, "lost → all accepted\t%.0f ms\n", r.LostToAcceptedMS)
	fmt.Fprintf(t, "lost → all shown as running\t%.0f ms\n", r.LostToRunningMS)
	fmt.Fprintf(t, "missing instances\t%d\n", r.Missing)
	fmt.Fprintf(t, "CPU time of the server\t%.1f s\n", r.ServerCPUSeconds)
	fmt.Fprintf(t, "peak memory of the server\t%.0f MB\n", r.ServerPeakRSSMB)
	return t.Flush()
}

// count counts distinct slots, and notes when the latest one came.
type count struct {
	mu    sync.Mutex
	slots map[string]struct{}
	last  time.Time
}

func (c *count) note(s *nusav1.Slot, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := fmt.Sprintf("%s/%d", s.GetJob(), s.GetFrom())
	if _, again := c.slots[key]; again {
		return
	}
	if c.slots == nil {
		c.slots = map[string]struct{}{}
	}
	c.slots[key], c.last = struct{}{}, at
}

func (c *count) get() (int, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.slots), c.last
}

// MeasureMoves cuts off an emulated region that has all the instances, and measures how fast
// other emulated regions get them. When MeasureMoves returns an error after the cut, the result
// holds the figures up to the error.
func MeasureMoves(ctx context.Context, o Scale) (_ *Moves, err error) {
	f, err := startFederation(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := f.close(); err == nil {
			err = closed
		}
	}()
	nodes := o.Instances/perNode*2 + 1
	var before, offered, accepted count
	if err := f.join(ctx, emulate.Config{Addr: f.proxy.addr(), Regions: 1, Prefix: "lost-", Nodes: nodes, Accepted: before.note}); err != nil {
		return nil, err
	}
	if err := f.submit(ctx); err != nil {
		return nil, err
	}
	if err := f.all(ctx, "accepted before the cut", &before); err != nil {
		return nil, err
	}
	others := emulate.Config{Addr: f.addr, Regions: o.Regions - 1, Prefix: "room-", Nodes: nodes, Offered: offered.note, Accepted: accepted.note}
	if err := f.join(ctx, others); err != nil {
		return nil, err
	}
	o.progress("waiting for reports")
	if err := report.Pause(ctx, calm); err != nil {
		return nil, err
	}
	r := &Moves{Instances: o.Instances, Regions: o.Regions, AfterSeconds: o.After.Seconds(), LeaseSeconds: o.Lease.Seconds()}
	err = f.move(ctx, r, &offered, &accepted)
	n, _ := offered.get()
	r.Missing = o.Instances - n
	return r, err
}

// all waits until all slots are counted.
func (f *federation) all(ctx context.Context, what string, c *count) error {
	return f.until(ctx, "not all instances were "+what, func() (bool, error) {
		n, _ := c.get()
		f.o.progress("%d of %d instances %s", n, f.o.Instances, what)
		return n >= f.o.Instances, nil
	})
}

// move cuts off the region and waits until its instances run elsewhere.
func (f *federation) move(ctx context.Context, r *Moves, offered, accepted *count) error {
	events, err := nusav1.NewEventsClient(f.conn).Watch(ctx, &nusav1.WatchEventsRequest{})
	if err != nil {
		return fmt.Errorf("watch the events: %w", err)
	}
	cpu, err := report.CPUTime(f.server.PID())
	if err != nil {
		return err
	}
	f.o.progress("the region is cut off")
	cut := time.Now()
	f.proxy.cut()
	for {
		e, err := events.Recv()
		if err != nil {
			return fmt.Errorf("the region was not declared lost: %w", err)
		}
		if e.GetType() == "region.lost" {
			break
		}
	}
	lost := time.Now()
	r.CutToLostMS = report.Milliseconds(lost.Sub(cut))
	if err := f.all(ctx, "offered elsewhere", offered); err != nil {
		return err
	}
	_, at := offered.get()
	r.LostToOfferedMS = report.Milliseconds(at.Sub(lost))
	if err := f.all(ctx, "accepted elsewhere", accepted); err != nil {
		return err
	}
	_, at = accepted.get()
	r.LostToAcceptedMS = report.Milliseconds(at.Sub(lost))
	err = f.until(ctx, "not all jobs run", func() (bool, error) { return f.running(ctx) })
	if err != nil {
		return err
	}
	r.LostToRunningMS = report.Milliseconds(time.Since(lost))
	after, err := report.CPUTime(f.server.PID())
	if err != nil {
		return err
	}
	r.ServerCPUSeconds = report.Seconds(after - cpu)
	r.ServerPeakRSSMB, err = report.Memory(f.server.PID(), "status", "VmHWM:")
	return err
}

// running reports whether every job runs with all its instances.
func (f *federation) running(ctx context.Context) (bool, error) {
	jobs, token := 0, ""
	for {
		page, err := nusav1.NewJobsClient(f.conn).List(ctx, &nusav1.ListJobsRequest{Limit: pageJobs, PageToken: token})
		if err != nil {
			return false, fmt.Errorf("list the jobs: %w", err)
		}
		for _, j := range page.GetJobs() {
			if j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
				return false, nil
			}
			jobs++
		}
		token = page.GetNextPageToken()
		if token == "" {
			return jobs == f.o.Instances, nil
		}
	}
}
