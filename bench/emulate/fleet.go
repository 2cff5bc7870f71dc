package emulate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// pollEvery is the interval at which await checks its condition.
	pollEvery = 5 * time.Millisecond
	// leaveWithin bounds the time in which all regions leave.
	leaveWithin = 5 * time.Second
)

// Config says what a fleet emulates.
type Config struct {
	// Addr is the gRPC address of a global server. Net is the network on which the regions
	// dial the server; the zero value is the host's network.
	Addr string
	Net  network.Net
	// Regions is the number of regions. Prefix begins the names of the regions, and makes
	// the ids of their clusters unique.
	Regions int
	Prefix  string
	// Labels are the labels of every region.
	Labels map[string]string
	// Nodes is the number of nodes of each region.
	Nodes int
	// Ask returns what an instance of a job reserves.
	Ask func(job string) (cpuMilli, memoryBytes int64)
	// Own returns what the region's own jobs reserve now. A nil Own means nothing.
	Own func(region string) (cpuMilli, memoryBytes int64)
	// ReportDelay is the age of a report when the region sends the report.
	ReportDelay time.Duration
	// Offered is called when a region receives a slot that it did not have. Accepted is
	// called when a region learns that the store has the acceptance of a slot. Both must
	// return at once, and may be nil.
	Offered, Accepted func(s *nusav1.Slot, at time.Time)
	// Ends: all instances of a slot of a batch job end successfully as soon as the region has accepted it.
	Ends bool
	// Ended is called when a region sends that a slot has ended: once for the answer, and once for the summary of
	// its job. An answer may be repeated. It must return at once, and may be nil.
	Ended func(namespace, job string, at time.Time)
}

// Fleet holds emulated regions. A Fleet is safe for concurrent use.
type Fleet struct {
	cfg     Config
	net     network.Net
	traffic Traffic
	tables  peerTables
	began   time.Time
	regions []*region
	leaving chan struct{}

	// connected counts the regions that hold a lease in their session. rows counts the
	// regions whose row the global tier has processed since RefreshRows began. ended
	// counts the sessions that the global tier ended.
	connected, rows, ended atomic.Int64
	// open counts the sessions that exist now, with or without a lease.
	open atomic.Int64
}

// New returns a fleet whose regions do not run yet.
func New(cfg Config) *Fleet {
	f := &Fleet{cfg: cfg, began: time.Now(), leaving: make(chan struct{})}
	if cfg.Net.Dial == nil {
		cfg.Net = network.Host()
	}
	f.net = f.traffic.over(cfg.Net)
	places := Places(cfg.Prefix, cfg.Regions)
	for i := range places {
		f.regions = append(f.regions, newRegion(f, i, &places[i]))
	}
	return f
}

// Names returns the names of the regions, sorted.
func (f *Fleet) Names() []string {
	out := make([]string, len(f.regions))
	for i, r := range f.regions {
		out[i] = r.place.Name
	}
	return out
}

// Run holds the sessions of all regions until ctx ends or the regions leave. Run returns
// an error if the global tier refuses a region permanently.
func (f *Fleet) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range f.regions {
		g.Go(func() error { return r.run(ctx) })
	}
	return g.Wait()
}

// Leave makes all regions say goodbye, and waits until their sessions have ended. It is
// called at most once.
func (f *Fleet) Leave(ctx context.Context) error {
	close(f.leaving)
	for _, r := range f.regions {
		r.wakeSender()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, leaveWithin, errors.New("the emulated regions did not leave in time"))
	defer cancel()
	return f.await(ctx, func() bool { return f.open.Load() == 0 })
}

func (f *Fleet) isLeaving() bool {
	select {
	case <-f.leaving:
		return true
	default:
		return false
	}
}

// AwaitConnected waits until every region holds a lease. progress may be nil.
func (f *Fleet) AwaitConnected(ctx context.Context, progress func(connected int)) error {
	err := f.await(ctx, func() bool {
		n := int(f.connected.Load())
		if progress != nil {
			progress(n)
		}
		return n == len(f.regions)
	})
	if err != nil {
		return fmt.Errorf("%d of %d emulated regions hold a lease: %w", f.connected.Load(), len(f.regions), err)
	}
	return nil
}

// RefreshRows makes every region send the round trips that it has not sent yet. Then it
// waits until the global tier has processed them.
func (f *Fleet) RefreshRows(ctx context.Context) error {
	f.rows.Store(0)
	for _, r := range f.regions {
		r.refreshRow()
	}
	err := f.await(ctx, func() bool { return int(f.rows.Load()) == len(f.regions) })
	if err != nil {
		return fmt.Errorf("the round trips of %d of %d emulated regions arrived: %w", f.rows.Load(), len(f.regions), err)
	}
	return nil
}

// await polls until done returns true, or ctx ends.
func (f *Fleet) await(ctx context.Context, done func() bool) error {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
	return nil
}

// Free returns the unreserved resources of each region. They are negative if the region's
// instances reserve more than it has.
func (f *Fleet) Free() map[string]*nusav1.Resources {
	out := make(map[string]*nusav1.Resources, len(f.regions))
	nodes := int64(f.cfg.Nodes)
	for _, r := range f.regions {
		r.mu.Lock()
		cpu, memory := r.reserved()
		r.mu.Unlock()
		out[r.place.Name] = &nusav1.Resources{CpuMilli: nodes*nodeCPU - cpu, MemoryBytes: nodes*nodeMemory - memory}
	}
	return out
}

// Waiting counts the slots of each region that wait for room.
func (f *Fleet) Waiting() map[string]int {
	out := map[string]int{}
	for _, r := range f.regions {
		r.mu.Lock()
		for _, s := range r.held {
			if s.waits && s.runs() {
				out[r.place.Name]++
			}
		}
		r.mu.Unlock()
	}
	return out
}

// Connected returns how many regions hold a lease in their session.
func (f *Fleet) Connected() int { return int(f.connected.Load()) }

// Ended returns how many sessions the global tier has ended so far.
func (f *Fleet) Ended() int { return int(f.ended.Load()) }

// Bytes returns the bytes that the regions have received and sent so far.
func (f *Fleet) Bytes() (down, up int64) { return f.traffic.Bytes() }
