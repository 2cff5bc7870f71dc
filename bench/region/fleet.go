package region

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxAgentsPerConn is how many agents may share a connection: a server takes
	// 1024 streams on one.
	maxAgentsPerConn = 512
	// lanes are the goroutines that send heartbeats.
	lanes = 8
	// maxServers of a region are remembered.
	maxServers = 16
	// greetings are under way at a time.
	greetings = 256
	// beatEvery is how often the heartbeats of a lane that are due are sent.
	beatEvery = 50 * time.Millisecond
	// goodbyeWithin is how long a region may take to hear that all leave.
	goodbyeWithin = 5 * time.Second
	// defaultLease and defaultStats are used until a master has said others.
	defaultLease, defaultStats = 10 * time.Second, 5 * time.Second
)

// fleet is the simulated agents: a goroutine each, and everything they say that
// is the same for all.
type fleet struct {
	perConn        int // agents that share a connection
	net            network.Net
	region, prefix string
	noAck          bool
	// polite agents say goodbye, to a region that goes on.
	polite     bool
	leaving    chan struct{} // closed when they have
	capacity   *nusav1.Resources
	agents     []*simulated
	greeting   chan struct{} // as many as greet now
	connected  atomic.Int64  // agents that have a session with the master
	lease      atomic.Int64  // nanoseconds
	statsEvery atomic.Int64

	stats *nusav1.NodeStats
	tasks map[nusav1.AllocState]map[string]*nusav1.TaskState

	mu     sync.Mutex
	master string
	known  []string // servers of the region, in the order in which they were named
	conns  map[string][]*grpc.ClientConn
}

// newFleet makes agents that find the master through addr. Their nodes have
// room for the instances, and half as many again.
func newFleet(n, perConn int, region, prefix, addr string, instances int, noAck bool) *fleet {
	f := &fleet{
		perConn: max(1, perConn), net: network.Host(), region: region, prefix: prefix, noAck: noAck, master: addr,
		known:    []string{addr},
		capacity: nodeCapacity(n, instances),
		leaving:  make(chan struct{}), greeting: make(chan struct{}, greetings), conns: map[string][]*grpc.ClientConn{},
		stats: sampleStats(),
		tasks: map[nusav1.AllocState]map[string]*nusav1.TaskState{},
	}
	for _, s := range []nusav1.AllocState{nusav1.AllocState_ALLOC_STATE_RUNNING, nusav1.AllocState_ALLOC_STATE_STOPPED} {
		f.tasks[s] = map[string]*nusav1.TaskState{taskName: {State: s, Started: timestamppb.Now()}}
	}
	f.intervals(defaultLease, defaultStats)
	for i := range n {
		f.agents = append(f.agents, newSimulated(f, i))
	}
	return f
}

// nodeCapacity is 64 cores and 256 GiB, or more where that would not do.
func nodeCapacity(nodes, instances int) *nusav1.Resources {
	each := int64(1)
	if nodes > 0 {
		each = int64(instances)*3/2/int64(nodes) + 2
	}
	return &nusav1.Resources{
		CpuMilli: max(64_000, each*askCPU), MemoryBytes: max(256<<30, each*askMemory), DiskBytes: 4 << 40,
	}
}

// run keeps the agents in session until ctx ends; polite ones then say goodbye,
// unless the whole ends, too.
func (f *fleet) run(ctx, whole context.Context) error {
	defer f.close()
	// The sessions outlive ctx by the goodbye.
	base, end := context.WithCancel(whole)
	defer end()
	g, sessions := errgroup.WithContext(base)
	for _, a := range f.agents {
		g.Go(func() error { return a.run(sessions) })
	}
	for lane := range min(lanes, len(f.agents)) {
		g.Go(func() error {
			f.beat(sessions, lane)
			return nil
		})
	}
	g.Go(func() error {
		select {
		case <-sessions.Done():
		case <-ctx.Done():
			f.goodbye(sessions)
			end()
		}
		return nil
	})
	return g.Wait()
}

// goodbye returns when the region has ended every session for it, or is too
// slow to.
func (f *fleet) goodbye(ctx context.Context) {
	close(f.leaving)
	if !f.polite {
		return
	}
	for _, a := range f.agents {
		a.bye()
	}
	ctx, cancel := context.WithTimeout(ctx, goodbyeWithin)
	defer cancel()
	poll := time.NewTicker(report.PollEvery)
	defer poll.Stop()
	for f.connected.Load() > 0 && ctx.Err() == nil {
		select {
		case <-poll.C:
		case <-ctx.Done():
		}
	}
}

// beat sends one lane's heartbeats and statistics, spread over their intervals.
func (f *fleet) beat(ctx context.Context, lane int) {
	var mine []*simulated
	for i := lane; i < len(f.agents); i += lanes {
		mine = append(mine, f.agents[i])
	}
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	leases := rota{n: len(mine)}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, i := range leases.due(beatEvery, time.Duration(f.lease.Load())/3) {
			mine[i].beat()
		}
	}
}

// rota gives each of n its turn once an interval.
type rota struct {
	n, next int
	owed    float64
}

// due are those whose turn came in the time that passed.
func (r *rota) due(passed, interval time.Duration) []int {
	r.owed += float64(r.n) * passed.Seconds() / interval.Seconds()
	var out []int
	for ; r.owed >= 1; r.owed-- {
		out = append(out, r.next)
		r.next = (r.next + 1) % r.n
	}
	return out
}

func (f *fleet) intervals(lease, stats time.Duration) {
	if lease > 0 {
		f.lease.Store(int64(lease))
	}
	if stats > 0 {
		f.statsEvery.Store(int64(stats))
	}
}

// conn is agent n's connection to the master, as far as it is known, and its
// address.
func (f *fleet) conn(n int) (*grpc.ClientConn, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := n / f.perConn
	conns := f.conns[f.master]
	if conns == nil {
		conns = make([]*grpc.ClientConn, (len(f.agents)+f.perConn-1)/f.perConn)
		f.conns[f.master] = conns
	}
	if conns[at] == nil {
		c, err := serve.Dial(f.net, f.master, grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
		if err != nil {
			return nil, "", err
		}
		conns[at] = c
	}
	return conns[at], f.master, nil
}

// setMaster notes whom a server, or who started the servers, names as master.
func (f *fleet) setMaster(addr string) {
	if addr == "" {
		return // it does not know either
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.master = addr
	f.note(addr)
}

// note adds a server to those known. mu is held.
func (f *fleet) note(addr string) {
	if addr != "" && !slices.Contains(f.known, addr) && len(f.known) < maxServers {
		f.known = append(f.known, addr)
	}
}

// learn notes the servers that one of them has named.
func (f *fleet) learn(list *nusav1.ServerList) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range list.GetServers() {
		f.note(s.GetAddress())
	}
}

// lost turns from a server that does not answer to the next one known: it says
// who is master now.
func (f *fleet) lost(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.master == addr { // else another agent has done so
		f.master = f.known[(slices.Index(f.known, addr)+1)%len(f.known)]
	}
}

func (f *fleet) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conns := range f.conns {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}
}

// enter waits for a turn to greet; false when ctx ended before.
func (f *fleet) enter(ctx context.Context) bool {
	select {
	case f.greeting <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *fleet) leave() { <-f.greeting }

// backoff between two sessions, as an agent's first ones.
func (f *fleet) backoff() time.Duration {
	return 50*time.Millisecond + rand.N(100*time.Millisecond)
}

// await waits until every agent has its session.
func (f *fleet) await(ctx context.Context, progress func(connected int)) error {
	poll := time.NewTicker(report.PollEvery)
	defer poll.Stop()
	for {
		n := int(f.connected.Load())
		if n == len(f.agents) {
			return nil
		}
		progress(n)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d simulated agents have a session: %w", n, len(f.agents), context.Cause(ctx))
		case <-poll.C:
		}
	}
}
