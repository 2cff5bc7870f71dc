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
	// maxAgentsPerConn bounds the agents that share a connection. A server accepts
	// 1024 streams on one connection.
	maxAgentsPerConn = 512
	// senders is the number of goroutines that send heartbeats.
	senders = 8
	// maxServers bounds the servers of a region that the fleet remembers.
	maxServers = 16
	// greetings bounds the number of agents that open a session at the same time.
	greetings = 256
	// beatEvery is the interval at which a sender sends the heartbeats that are due.
	beatEvery = 50 * time.Millisecond
	// goodbyeWithin bounds the time in which all agents leave a region.
	goodbyeWithin = 5 * time.Second
	// defaultLease and defaultStats apply until a master has sent its own lease and
	// interval.
	defaultLease, defaultStats = 10 * time.Second, 5 * time.Second
)

// fleet holds the simulated agents and the messages that are equal for all agents. Each
// agent has one goroutine.
type fleet struct {
	perConn        int // agents that share a connection
	net            network.Net
	region, prefix string
	noAck          bool
	members        *members // nil without --tls
	// saysGoodbye: the agents say goodbye when they leave. They do so in a region that
	// runs longer than the measurement.
	saysGoodbye bool
	leaving     chan struct{} // closed when all agents shall leave
	capacity    *nusav1.Resources
	agents      []*simulated
	greeting    chan struct{} // one element for each agent that opens a session now
	connected   atomic.Int64  // agents that have a session with the master
	lease       atomic.Int64  // nanoseconds
	statsEvery  atomic.Int64

	stats *nusav1.NodeStats
	tasks map[nusav1.AllocState]map[string]*nusav1.TaskState

	mu     sync.Mutex
	master string
	known  []string // servers of the region, in the order in which they were named
	conns  map[string][]*grpc.ClientConn
}

// newFleet makes n agents that find the master through the server at addr. Their nodes
// have room for at least 1.5 times the instances.
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

// nodeCapacity returns the capacity of each node: 64 cores and 256 GiB, or more if the
// instances need more.
func nodeCapacity(nodes, instances int) *nusav1.Resources {
	each := int64(1)
	if nodes > 0 {
		each = int64(instances)*3/2/int64(nodes) + 2
	}
	return &nusav1.Resources{
		CpuMilli: max(64_000, each*askCPU), MemoryBytes: max(256<<30, each*askMemory), DiskBytes: 4 << 40,
	}
}

// run holds the sessions of all agents until ctx ends. If the agents say goodbye, they
// then leave the region, unless the context whole has ended, too.
func (f *fleet) run(ctx, whole context.Context) error {
	defer f.close()
	// The sessions outlive ctx until the goodbye is sent.
	base, end := context.WithCancel(whole)
	defer end()
	g, sessions := errgroup.WithContext(base)
	for _, a := range f.agents {
		g.Go(func() error { return a.run(sessions) })
	}
	for sender := range min(senders, len(f.agents)) {
		g.Go(func() error {
			f.beat(sessions, sender)
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

// goodbye makes the agents leave. If they say goodbye, it waits until the region has ended
// every session, but not longer than goodbyeWithin.
func (f *fleet) goodbye(ctx context.Context) {
	close(f.leaving)
	if !f.saysGoodbye {
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

// beat sends the heartbeats and statistics of one sender's agents, spread evenly over the
// interval of heartbeats.
func (f *fleet) beat(ctx context.Context, sender int) {
	var mine []*simulated
	for i := sender; i < len(f.agents); i += senders {
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

// rota gives each of n agents one turn in each interval.
type rota struct {
	n, next int
	turns   float64
}

// due returns the numbers of the agents that have their turn in the passed time.
func (r *rota) due(passed, interval time.Duration) []int {
	r.turns += float64(r.n) * passed.Seconds() / interval.Seconds()
	var out []int
	for ; r.turns >= 1; r.turns-- {
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

// conn returns the connection of agent n to the last known master, and the master's
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
		secure, err := f.members.agent(f.name(n))
		if err != nil {
			return nil, "", err
		}
		c, err := serve.Dial(f.net, f.master, append(secure, grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))...)
		if err != nil {
			return nil, "", err
		}
		conns[at] = c
	}
	return conns[at], f.master, nil
}

// setMaster records the address of the master, as a server has named it.
func (f *fleet) setMaster(addr string) {
	if addr == "" {
		return // the server does not know the master
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.master = addr
	f.note(addr)
}

// note adds an address to the known servers. The caller holds f.mu.
func (f *fleet) note(addr string) {
	if addr != "" && !slices.Contains(f.known, addr) && len(f.known) < maxServers {
		f.known = append(f.known, addr)
	}
}

// learn adds a list that a server sent to the known servers.
func (f *fleet) learn(list *nusav1.ServerList) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range list.GetServers() {
		f.note(s.GetAddress())
	}
}

// lost leaves a server that does not respond and chooses the next known server. If that
// server is not the master, it names the master.
func (f *fleet) lost(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.master == addr { // otherwise another agent has switched already
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

// enter waits for a turn to open a session. It returns false when ctx ends first.
func (f *fleet) enter(ctx context.Context) bool {
	select {
	case f.greeting <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *fleet) leave() { <-f.greeting }

// backoff returns the pause before the next session, as long as the first pauses of a real
// agent.
func (f *fleet) backoff() time.Duration {
	return 50*time.Millisecond + rand.N(100*time.Millisecond)
}

// await waits until every agent has a session with the master.
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
