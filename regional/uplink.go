package regional

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// protocol is the version of the wire protocol spoken with the global tier.
const protocol = 1

const (
	// Between two rounds over all global servers: jittered, doubling.
	retryFrom = 100 * time.Millisecond
	retryTo   = 5 * time.Second
	// welcomeWithin is how long a global server may take to answer a hello.
	welcomeWithin = 10 * time.Second
	// goodbyeWithin is how long an ending session waits for its goodbye to be
	// read.
	goodbyeWithin = 200 * time.Millisecond
	// maxTunnels bounds the calls from above under way at once.
	maxTunnels = 16
	// maxSlots bounds the slots of the region, as a full set.
	maxSlots = 1 << 20
	// maxHold bounds for how long instances are kept that fit nowhere.
	maxHold = time.Hour
	// maxSubscriptions bounds the asks whose fit is reported.
	maxSubscriptions = 256
)

// errRefused needs an operator: the region cannot be what it says it is.
var errRefused = errors.New("the global tier refuses this region")

type upStream = grpc.BidiStreamingClient[nusav1.RegionMessage, nusav1.GlobalMessage]

// uplink is the region's voice towards the global tier: one session with the
// active global server, as long as this server is the master. While there is
// none the region is an island and goes on.
type uplink struct {
	l *leader

	// session is nil while there is none.
	session atomic.Pointer[upSession]

	mu   sync.Mutex
	subs []subscription
	// summaries are the jobs' counts, nil before run and where there is no
	// global tier; dirty ones are summed up when sent.
	summaries *link.Outbox[*nusav1.JobSummary]
	dirty     map[state.JobKey]struct{}
	// unplaced are the groups that the newest plan had reasons for.
	unplaced map[state.GroupKey]struct{}
	// away are the jobs of which instances are away, told anew after awayAt.
	away   map[state.JobKey]struct{}
	awayAt time.Time
}

// subscription is an ask whose fit the global tier wants to know.
type subscription struct {
	hash uint64
	ask  *state.Ask
}

func newUplink(l *leader) *uplink {
	return &uplink{l: l, dirty: map[state.JobKey]struct{}{}, unplaced: map[state.GroupKey]struct{}{}, away: map[state.JobKey]struct{}{}}
}

// up says whether a session with the global tier stands.
func (u *uplink) up() bool { return u.session.Load() != nil }

func (u *uplink) current() *upSession { return u.session.Load() }

// changed notes groups whose slots, counts or allocations changed.
func (u *uplink) changed(groups []state.GroupKey) {
	u.mu.Lock()
	if u.summaries == nil {
		u.mu.Unlock()
		return // nobody to tell, or begin notes everything
	}
	for _, g := range groups {
		u.dirty[g.JobKey()] = struct{}{}
	}
	ss := u.session.Load()
	u.mu.Unlock()
	if ss != nil {
		ss.note(func() { ss.answers, ss.critical = true, true })
	}
}

// explained notes the groups that a plan has reasons for, and those that it
// has none for any more.
func (u *uplink) explained(groups map[state.GroupKey]struct{}) {
	u.mu.Lock()
	if u.summaries == nil {
		u.mu.Unlock()
		return
	}
	for g := range u.unplaced {
		u.dirty[g.JobKey()] = struct{}{}
	}
	for g := range groups {
		u.dirty[g.JobKey()] = struct{}{}
	}
	quiet := len(u.unplaced) == 0 && len(groups) == 0
	u.unplaced = groups
	ss := u.session.Load()
	u.mu.Unlock()
	if ss != nil && !quiet {
		ss.poke()
	}
}

// measured notes that an edge changed noticeably.
func (u *uplink) measured() {
	if ss := u.current(); ss != nil {
		ss.note(func() { ss.latency = true })
	}
}

// tellServers notes that the region's servers changed.
func (u *uplink) tellServers() {
	if ss := u.current(); ss != nil {
		ss.note(func() { ss.servers = true })
	}
}

// run keeps a session with the global tier until ctx ends.
func (u *uplink) run(ctx context.Context) error {
	servers := u.l.s.cfg.Global
	if len(servers) == 0 {
		<-ctx.Done()
		return nil
	}
	u.begin()
	next, wait := rand.IntN(len(servers)), retryFrom
	level := slog.LevelInfo // of the first failure; its repetitions are quiet
	for tried := 0; ctx.Err() == nil; {
		addr := servers[next%len(servers)]
		welcomed, err := u.connect(ctx, addr)
		if ctx.Err() != nil {
			return nil
		}
		u.sumUp() // else a long island would remember every job that ever was
		if errors.Is(err, errRefused) {
			level, wait = slog.LevelError, retryTo
		}
		u.l.log.Log(ctx, level, "no session with the global tier: the region is an island", "server", addr, "error", err)
		level = slog.LevelDebug
		if welcomed {
			// It was there a moment ago: the same one first, soon.
			tried, wait, level = 0, retryFrom, slog.LevelInfo
		} else {
			next, tried = next+1, tried+1
		}
		if welcomed || tried%len(servers) == 0 {
			pause(ctx, time.Duration((0.5+0.5*rand.Float64())*float64(wait)))
			wait = min(2*wait, retryTo)
		}
	}
	return nil
}

// begin sums all jobs up.
func (u *uplink) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.summaries = link.NewOutbox[*nusav1.JobSummary](u.l.epoch, 1024)
	for g := range u.l.s.fsm.View().Groups() {
		u.dirty[g.Key.JobKey()] = struct{}{}
	}
}

// connect holds one session until it ends, which is its error.
func (u *uplink) connect(ctx context.Context, addr string) (welcomed bool, err error) {
	conn, err := serve.Dial(u.l.s.cfg.Net, addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	// The stream outlives ctx by a goodbye.
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(goodbyeWithin, cancel) })
	defer stop()
	slow := time.AfterFunc(welcomeWithin, cancel)
	defer slow.Stop()
	client := nusav1.NewFederationClient(conn)
	stream, err := client.Session(streamCtx)
	if err != nil {
		return false, fmt.Errorf("open a session: %w", err)
	}
	if err := stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Hello{Hello: u.hello()}}); err != nil {
		return false, streamError(stream, err)
	}
	first, err := stream.Recv()
	if err != nil {
		return false, fmt.Errorf("wait for the welcome: %w", err)
	}
	slow.Stop()
	if r := first.GetRefused(); r.GetPermanent() {
		return false, fmt.Errorf("%w: %s", errRefused, r.GetMessage())
	} else if r != nil {
		return false, fmt.Errorf("not now: %s", r.GetMessage())
	}
	if first.GetWelcome() == nil {
		return false, errors.New("the first message was no welcome")
	}
	ss := u.open(stream, client, first.GetWelcome())
	defer u.close(ss)
	u.l.log.Info("session with the global tier", "server", addr, "session", first.GetWelcome().GetSession())
	return true, ss.run(ctx, cancel)
}

// streamError is the reason why a send failed: gRPC tells it to Recv.
func streamError(stream upStream, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func (u *uplink) hello() *nusav1.RegionHello {
	s := u.l.s
	return &nusav1.RegionHello{
		Definition: s.cfg.Region, ClusterId: u.l.cluster.ID, Incarnation: u.l.cluster.Incarnation, Term: u.l.term,
		Master: s.cfg.Name, MasterAddress: s.addrs.GRPC, Servers: s.servers(),
		Orders:  wire.PositionToProto(s.fsm.View().Cluster().Orders),
		Version: s.cfg.Version, Protocol: protocol,
	}
}

func (u *uplink) open(stream upStream, client nusav1.FederationClient, w *nusav1.GlobalWelcome) *upSession {
	u.mu.Lock()
	defer u.mu.Unlock()
	ss := newUpSession(u, stream, client, w)
	ss.cursor = u.summaries.Cursor(link.Position(wire.PositionFromProto(w.GetSummaries())))
	u.session.Store(ss)
	u.l.seq.Wake() // what waits may be given back now
	return ss
}

func (u *uplink) close(ss *upSession) {
	u.session.CompareAndSwap(ss, nil)
}

// run sends and receives until one of them fails or ctx ends, then says
// goodbye. cancel ends the stream.
func (ss *upSession) run(ctx context.Context, cancel context.CancelFunc) error {
	ended := make(chan error, 1)
	var calls errgroup.Group
	calls.SetLimit(maxTunnels)
	tunnels, endTunnels := context.WithCancel(context.WithoutCancel(ctx))
	go func() { ended <- ss.receive(ctx, tunnels, &calls) }()
	err, received := ss.sendAll(ctx, ended)
	if ctx.Err() != nil && !received {
		_ = ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Goodbye{
			Goodbye: &nusav1.Goodbye{Message: "the master ends its office"}}})
		_ = ss.stream.CloseSend()
		<-ended // at the latest when goodbyeWithin has cut the stream
		received = true
	}
	cancel()
	endTunnels()
	if !received {
		<-ended
	}
	return errors.Join(err, calls.Wait())
}

// receive handles what the global tier says, one thing after the other.
func (ss *upSession) receive(ctx, tunnels context.Context, calls *errgroup.Group) error {
	for {
		m, err := ss.stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the global server ended the session")
		}
		if err != nil {
			return err
		}
		switch m := m.GetKind().(type) {
		case *nusav1.GlobalMessage_Lease:
			ss.granted(m.Lease)
		case *nusav1.GlobalMessage_Orders:
			if err := ss.orders(ctx, m.Orders); err != nil {
				return err
			}
		case *nusav1.GlobalMessage_Peers:
			ss.u.l.s.federation.SetPeers(m.Peers)
			ss.u.l.prober.SetPeers(m.Peers.GetRegions())
		case *nusav1.GlobalMessage_Shapes:
			ss.u.subscribe(m.Shapes.GetAsks())
			ss.note(func() { ss.reportNow = true })
		case *nusav1.GlobalMessage_Column:
			ss.u.l.prober.SetColumn(m.Column.GetEdges())
		case *nusav1.GlobalMessage_Origins:
			if err := ss.u.l.s.federation.SetOrigins(m.Origins); err != nil {
				ss.u.l.log.Warn("origin records are not taken", "error", err)
			}
		case *nusav1.GlobalMessage_Matrix:
			if err := ss.u.l.prober.SetMatrix(m.Matrix); err != nil {
				ss.u.l.log.Warn("a matrix is not taken", "error", err)
			} else {
				ss.u.l.s.federation.SetMatrix(m.Matrix)
			}
		case *nusav1.GlobalMessage_Tunnel:
			id := m.Tunnel.GetId()
			open := func(ctx context.Context) (tunnel.ClientStream, error) { return ss.client.Tunnel(ctx) }
			if !calls.TryGo(func() error {
				if err := tunnel.Answer(tunnels, open, id, ss.u.l.s.tunnels); err != nil && tunnels.Err() == nil {
					ss.u.l.log.Debug("tunnel ended", "id", id, "error", err)
				}
				return nil
			}) {
				ss.u.l.log.Warn("too many tunnels, a request is not answered", "max", maxTunnels)
			}
		case *nusav1.GlobalMessage_Refused:
			return fmt.Errorf("the global tier ended the session: %s", m.Refused.GetMessage())
		}
	}
}

// orders commits slot orders, then acknowledges them.
func (ss *upSession) orders(ctx context.Context, o *nusav1.SlotOrders) error {
	b := link.Batch[*nusav1.SlotOrder]{Full: o.GetFull(), Last: o.GetLast(), Removed: o.GetRemoved(), Position: link.Position(wire.PositionFromProto(o.GetPosition()))}
	for _, w := range o.GetOrders() {
		s := w.GetSlot()
		b.Items = append(b.Items, link.Item[*nusav1.SlotOrder]{Key: state.SlotID(s.GetNamespace(), s.GetJob(), s.GetGroup(), s.GetFrom()), Value: w})
	}
	l := ss.u.l
	change, whole, err := ss.inbox.Add(b, l.slotIDs())
	if err != nil || !whole {
		return err
	}
	for _, cmd := range applyOrders(l.s.fsm.View(), change) {
		r, err := l.seq.CommitQueued(ctx, state.Command{ApplyOrders: cmd})
		if err != nil && !errors.Is(err, state.ErrStalePosition) {
			return fmt.Errorf("commit slot orders: %w", err)
		}
		for _, skip := range r.Skipped {
			l.log.Warn("slot order not carried out", "slot", skip.ID, "reason", skip.Reason, "message", skip.Message)
		}
	}
	ss.note(func() { ss.ack = wire.PositionToProto(l.s.fsm.View().Cluster().Orders) })
	return nil
}

// slotIDs are the keys of the global tier's slots that this region holds.
func (l *leader) slotIDs() iter.Seq[string] {
	return func(yield func(string) bool) {
		for s := range l.s.fsm.View().Slots() {
			if !s.Local && !yield(s.ID()) {
				return
			}
		}
	}
}

// applyOrders is a change as commands that each fit an entry, where single
// items allow. A job's version comes along where the state lacks it, or has
// another job under it: a name may be used again once its job was purged.
func applyOrders(view *state.View, change link.Change[*nusav1.SlotOrder]) []*state.ApplyOrders {
	type version struct {
		key     state.JobKey
		version int64
	}
	const perSlot = 256 // bytes of an order besides the job, roughly
	brought := map[version]bool{}
	position := state.Position(change.Position)
	cmd := &state.ApplyOrders{Position: position}
	out := []*state.ApplyOrders{cmd}
	size := 0
	for _, item := range change.Upserts {
		w := item.Value
		s := w.GetSlot()
		order := state.SlotOrder{Slot: state.Slot{
			Namespace: s.GetNamespace(), Job: s.GetJob(), Group: s.GetGroup(), From: s.GetFrom(), To: s.GetTo(),
			Generation: s.GetGeneration(), Revision: w.GetRevision(), JobVersion: s.GetJobVersion(), Run: s.GetRun(),
			Desired: state.Desired(s.GetDesired()), State: state.SlotState(s.GetState()),
			HoldNano: int64(min(max(s.GetHold().AsDuration(), 0), maxHold)), UnlessConnected: s.GetUnlessHeard(),
		}}
		v := version{order.Slot.Key().JobKey(), s.GetJobVersion()}
		have, held := view.Job(v.key, v.version)
		if !brought[v] && len(w.GetSpec()) > 0 && (!held || !bytes.Equal(have.Spec, w.GetSpec())) {
			order.Job = orderedJob(w)
			brought[v] = true
		}
		if grows := perSlot + 2*len(w.GetSpec()); order.Job != nil && size > 0 && size+grows > raftlog.MaxEntryBytes || size > raftlog.MaxEntryBytes {
			cmd.More = true
			cmd, size = &state.ApplyOrders{Position: position}, 0
			out = append(out, cmd)
		}
		cmd.Orders = append(cmd.Orders, order)
		size += perSlot
		if order.Job != nil {
			size += 2 * len(w.GetSpec())
		}
	}
	cmd.Removed = change.Removed
	return out
}

// orderedJob is the job that an order brings; nil when it cannot be read, which
// the state answers with a rejection.
func orderedJob(w *nusav1.SlotOrder) *state.Job {
	s, spec := w.GetSlot(), &nusav1.JobSpec{}
	if err := proto.Unmarshal(w.GetSpec(), spec); err != nil {
		return nil
	}
	job.Default(spec)
	// The order names the job; a spec that names another is not its.
	spec.Namespace, spec.Name = s.GetNamespace(), s.GetJob()
	return wire.JobFromProto(spec, w.GetSpec(), false, s.GetJobVersion())
}

// subscribe replaces the asks whose fit is reported.
func (u *uplink) subscribe(asks []*nusav1.ShapeSubscription) {
	if len(asks) > maxSubscriptions {
		u.l.log.Warn("too many shape subscriptions, the last ones are not reported", "asks", len(asks), "max", maxSubscriptions)
		asks = asks[:maxSubscriptions]
	}
	subs := make([]subscription, 0, len(asks))
	for _, a := range asks {
		subs = append(subs, subscription{a.GetAsk(), wire.ShapeAskFromProto(a)})
	}
	u.mu.Lock()
	u.subs = subs
	u.mu.Unlock()
}
