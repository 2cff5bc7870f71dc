package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/peers"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// protocol is the version of the wire protocol between a region and the global tier.
const protocol = 1

const (
	// The pause after a round of tries over all global servers grows from retryFrom to
	// retryTo. It is doubled after each round and jittered.
	retryFrom = 100 * time.Millisecond
	retryTo   = 5 * time.Second
	// firstWarning is how long the global tier may be missing before a warning. An election
	// takes less. nextWarning is the pause between two warnings.
	firstWarning = 30 * time.Second
	nextWarning  = 5 * time.Minute
	// welcomeTimeout bounds the wait for the response to a hello. The response takes some
	// seconds when all regions connect at once. A server that is gone is noticed earlier.
	welcomeTimeout = 30 * time.Second
	// spreadPerRegion spreads the first tries of all regions after their sessions have
	// ended.
	spreadPerRegion = time.Millisecond
	// goodbyeTimeout is how long an ending session waits until the server has read its
	// goodbye.
	goodbyeTimeout = 200 * time.Millisecond
	// maxTombstones is how many removed summaries the outbox remembers.
	maxTombstones = 1024
	// maxSubscriptions bounds the asks whose fit counts are reported.
	maxSubscriptions = 256
)

// errLevel ends a session whose hello had a lower feature level than the region has now.
var errLevel = errors.New("all servers of the region support a higher feature level now: a new session begins")

// errRebound ends a session that began while an operator bound the region to another federation.
var errRebound = errors.New("the region was bound to another federation: a new session begins")

// The reasons why the region has no session. errNotNow may pass by itself. The others need
// an operator: errRefused says that the global tier does not accept this region, and
// errForeign says that the region's log belongs to another federation.
var (
	errRefused = errors.New("the global tier refuses this region")
	errNotNow  = errors.New("the global tier refuses this region now")
	errForeign = errors.New("the region stays an island")
)

type globalStream = grpc.BidiStreamingClient[nusav1.RegionMessage, nusav1.GlobalMessage]

// Config holds what an Uplink needs from its server and its term.
type Config struct {
	Definition *nusav1.RegionDefinition
	// Global lists the gRPC addresses of global servers. Empty: there is no global tier.
	Global []string
	Net    network.Net
	// Identity is for the connection to a global server. It may be nil.
	Identity *trust.Source
	// Server is the name of this server. Address is its gRPC address.
	Server, Address string
	Version         string
	// ReportInterval is the longest pause between two reports.
	ReportInterval time.Duration
	// Clock is monotonic and runs through suspend.
	Clock func() time.Duration

	Cluster state.Cluster
	Term    uint64
	// Epoch identifies the outbox of summaries. Each term has another Epoch.
	Epoch string

	// LeaseReturned is called when the region has a lease again after it had none.
	LeaseReturned func()
	// LogSuspect reports whether the log may be an old copy. While it may be, no answer
	// says that work has ended.
	LogSuspect func() bool
	// Planned returns the position in the slot orders up to which the committed plans are
	// complete. It is zero before the first plan.
	Planned func() state.Position

	Log        *raftlog.Sequencer
	Verifier   *raftlog.Verifier
	FSM        *raftlog.FSM
	Reporter   *Reporter
	Federation *peers.FederationCache
	Prober     *peers.Prober
	// Tunnels accepts the calls that come through tunnels from the global tier.
	Tunnels *tunnel.Listener
	// Discover exchanges the instances of services with the global server of a session until ctx ends. nil: it
	// does nothing.
	Discover func(ctx context.Context, client nusav1.DiscoveryClient, session string)
	// Servers returns the region's servers.
	Servers func() []*nusav1.RegionalServer
	Logger  *slog.Logger
}

// Uplink holds a session with the active global server while this server is the master.
// Without a session the region works on its own. Uplink is safe for concurrent use.
type Uplink struct {
	cfg Config
	// LengthChanged is called when a session begins in which the region's lease has another
	// length. It must be set before Run.
	LengthChanged func()
	// session is nil while no session exists.
	session   atomic.Pointer[session]
	summaries summaries
	// row is the part of this region's row that the global tier has. Only the sender of the
	// session uses it, and between sessions connect.
	row sentRow
	// joining: the log may get a welcome of an earlier session, or of the present one, later. Only
	// the receiver of the session uses it, and between sessions connect.
	joining bool

	mu            sync.Mutex
	subscriptions []Subscription
	// asks are the asks of subscriptions, sorted. asksReceived is true once the global tier
	// has sent them.
	asks         []*nusav1.ShapeSubscription
	asksReceived bool
	// whole says in which session this master got all orders.
	whole wholeOrders
	// column is the position of the latest column that the global tier sent.
	column *nusav1.Position
	// refused is the reason why the global tier refuses this region. It is empty once a
	// session begins.
	refused string
	// tellWork: the next hello must list the work of the region. Only connect uses it.
	tellWork bool
	// lease is the region's lease, over all sessions of this master. length is the length
	// of the lease in the latest session. All sessions since lengthSince had that length.
	lease               regionlease.Lease
	length, lengthSince time.Duration
}

// New returns the uplink of a term.
func New(cfg Config) *Uplink {
	u := &Uplink{cfg: cfg, summaries: summaries{region: cfg.Definition.GetName()}, row: sentRow{epoch: cfg.Epoch}}
	if len(cfg.Global) > 0 {
		u.summaries.start(cfg.Epoch)
	}
	return u
}

// Connected reports whether a session with the global tier exists and its welcome is
// committed.
func (u *Uplink) Connected() bool {
	ss := u.session.Load()
	return ss != nil && ss.joined.Load()
}

// GroupsChanged records groups whose slots, counts or allocations changed.
func (u *Uplink) GroupsChanged(groups []state.GroupKey) {
	if !u.summaries.markGroups(groups) {
		return
	}
	if ss := u.session.Load(); ss != nil {
		ss.update(func() { ss.answersDirty, ss.urgentDirty = true, true })
	}
}

// ReasonsChanged records the groups for which the newest plan has reasons.
func (u *Uplink) ReasonsChanged(groups map[state.GroupKey]struct{}) {
	if !u.summaries.markReasons(groups) {
		return
	}
	if ss := u.session.Load(); ss != nil {
		ss.wakeSender()
	}
}

// EdgeChanged records that a measured edge changed noticeably.
func (u *Uplink) EdgeChanged() {
	if ss := u.session.Load(); ss != nil {
		ss.update(func() { ss.latencyDirty = true })
	}
}

// LevelChanged records that the region's feature level has risen.
func (u *Uplink) LevelChanged() {
	if ss := u.session.Load(); ss != nil {
		ss.wakeSender()
	}
}

// ServersChanged records that the region's servers changed.
func (u *Uplink) ServersChanged() {
	if ss := u.session.Load(); ss != nil {
		ss.update(func() { ss.serversDirty = true })
	}
}

// Run holds sessions with the global tier until ctx ends.
func (u *Uplink) Run(ctx context.Context) error {
	servers := u.cfg.Global
	if len(servers) == 0 {
		<-ctx.Done()
		return nil
	}
	for g := range u.cfg.FSM.View().Groups() {
		u.summaries.markJob(g.Key.JobKey())
	}
	next, backoff := rand.IntN(len(servers)), retryFrom
	level := slog.LevelInfo // the level of the first failure; later ones are logged at debug level
	lost := time.Now()
	warn := lost.Add(firstWarning)
	for failed := 0; ctx.Err() == nil; {
		addr := servers[next%len(servers)]
		welcomed, err := u.connect(ctx, addr)
		if ctx.Err() != nil {
			return nil
		}
		// Without this call the set of changed jobs would grow as long as no global tier
		// responds.
		u.updateSummaries()
		needsOperator := errors.Is(err, errRefused) || errors.Is(err, errForeign)
		if needsOperator {
			backoff = retryTo
		}
		if (needsOperator || errors.Is(err, errNotNow)) && u.setRefused(err) {
			level = slog.LevelWarn
			if needsOperator {
				level = slog.LevelError
			}
		}
		now := time.Now()
		if welcomed {
			lost, warn = now, now.Add(firstWarning)
		}
		if now.After(warn) && !needsOperator {
			u.warn(addr, err, now.Sub(lost))
			warn = now.Add(nextWarning)
		} else {
			u.cfg.Logger.Log(ctx, level, "no session with the global tier: the region works on its own", "server", addr, "error", err)
		}
		level = slog.LevelDebug
		if welcomed {
			// This server was reachable a moment ago. So it is tried first, after a short
			// wait.
			failed, backoff, level = 0, retryFrom, slog.LevelInfo
			wait.For(ctx, rand.N(1+min(retryTo, time.Duration(len(u.cfg.Prober.Others()))*spreadPerRegion)))
		} else {
			next, failed = next+1, failed+1
		}
		if welcomed || failed%len(servers) == 0 {
			wait.For(ctx, time.Duration((0.5+0.5*rand.Float64())*float64(backoff)))
			backoff = min(2*backoff, retryTo)
		}
	}
	return nil
}

// Refused returns why the global tier last refused this region. It is empty once a session
// begins, and when nothing is known to be wrong.
func (u *Uplink) Refused() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.refused
}

// setRefused records a refusal. It returns whether the refusal differs from the last one by
// more than its numbers.
func (u *Uplink) setRefused(err error) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.refused
	u.refused = err.Error()
	return reason.WithoutNumbers(was) != reason.WithoutNumbers(u.refused)
}

// warn logs that the region has had no session for some time. If no server has answered, the
// line says what to check.
func (u *Uplink) warn(addr string, err error, missing time.Duration) {
	log := u.cfg.Logger.With("server", addr, "error", err, "for", missing.Round(time.Second).String())
	switch {
	case rpcerr.NoPreface(err):
		log = log.With("check", needsIdentity)
	case !answered(err):
		log = log.With("check", whatToCheck)
	}
	log.Warn("no session with the global tier: the region works on its own")
}

// answered reports whether a server has answered the hello, although it opened no session.
func answered(err error) bool {
	if errors.Is(err, errRefused) || errors.Is(err, errNotNow) || errors.Is(err, errForeign) {
		return true
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unknown: // this server gave up, or saw no status
		return false
	}
	return rpcerr.TransportFailure(err) == rpcerr.NoFailure
}

// whatToCheck is the advice in the warning about a missing session.
const whatToCheck = "is a global server started, and with --bind if it is on another machine? does --global name its gRPC address? " +
	"does a firewall block the port?"

// needsIdentity is the advice if a program has accepted the connection of a region and then closed
// it.
const needsIdentity = "no global server listens there, or it has an identity, and the servers of this region " +
	"need --identity or --join-token-file, too (nusa token create)"

// connect opens a session and runs it until it ends. welcomed reports whether the session
// was opened. The error says why it ended or could not be opened.
func (u *Uplink) connect(ctx context.Context, addr string) (welcomed bool, err error) {
	conn, err := serve.Dial(u.cfg.Net, addr, u.cfg.Identity.Dial(identity.GlobalServers()))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	// The stream outlives ctx, so that the server can still read the goodbye.
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(goodbyeTimeout, cancel) })
	defer stop()
	slow := time.AfterFunc(welcomeTimeout, cancel)
	defer slow.Stop()
	client := nusav1.NewFederationClient(conn)
	stream, err := client.Session(streamCtx)
	if err != nil {
		return false, fmt.Errorf("open a session: %w", err)
	}
	hello := u.hello()
	hello.Known, hello.Coordinate = u.knownSets(), u.coordinate()
	if err := stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Hello{Hello: hello}}); err != nil {
		return false, streamError(stream, err)
	}
	first, err := stream.Recv()
	if err != nil {
		return false, fmt.Errorf("wait for the welcome: %w", err)
	}
	slow.Stop()
	u.tellWork = first.GetRefused().GetTellWork()
	if r := first.GetRefused(); r.GetPermanent() {
		return false, fmt.Errorf("%w: %s", errRefused, r.GetMessage())
	} else if r != nil {
		return false, fmt.Errorf("%w: %s", errNotNow, r.GetMessage())
	}
	if first.GetWelcome() == nil {
		return false, errors.New("the first message was no welcome")
	}
	join, err := u.joinOf(hello, first.GetWelcome())
	if err != nil {
		return false, err
	}
	ss := newSession(u, stream, client, first.GetWelcome(), join, hello.GetFeatureLevel())
	ss.discovery, ss.id = nusav1.NewDiscoveryClient(conn), first.GetWelcome().GetSession()
	u.newSession(ss.lease)
	u.row.resume(first.GetWelcome().GetRow())
	u.session.Store(ss)
	defer u.session.CompareAndSwap(ss, nil)
	u.cfg.Logger.Info("session with the global tier", "server", addr, "session", first.GetWelcome().GetSession(), "protocol", first.GetWelcome().GetProtocol())
	return true, ss.run(ctx, cancel)
}

// streamError returns why a send failed. In gRPC, Recv returns the reason.
func streamError(stream globalStream, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func (u *Uplink) hello() *nusav1.RegionHello {
	view := u.cfg.FSM.View()
	c := view.Cluster()
	hello := &nusav1.RegionHello{
		Definition: u.cfg.Definition, ClusterId: u.cfg.Cluster.ID, Incarnation: u.cfg.Cluster.Incarnation, Term: u.cfg.Term,
		Master: u.cfg.Server, MasterAddress: u.cfg.Address, Servers: u.cfg.Servers(),
		Orders:  wire.PositionToProto(c.Orders),
		Version: u.cfg.Version, Protocol: protocol,
		FederationId: c.FederationID, Fence: c.Fence, StoreRevision: c.StoreRevision,
		AppliedIndex: view.Index(), FeatureLevel: c.FeatureLevel, RestoreId: c.RestoreID,
	}
	if c.FederationID != "" {
		hello.LeaseMax, hello.StopTime = durationpb.New(c.RegionLeaseMax), durationpb.New(view.LongestStop())
		hello.LeadershipTerm = &nusav1.LeadershipTerm{Number: c.LeadershipTerm, Nonce: c.LeadershipNonce}
	}
	if u.tellWork {
		hello.Work, hello.WorkLeftOut = work(view)
	}
	return hello
}

// maxWorkBytes bounds the list of work in a hello.
const maxWorkBytes = 32 << 10

// work returns the slots that the region runs for the federation, and how many more did not
// fit.
func work(view *state.View) (out []*nusav1.RegionWork, leftOut int32) {
	size := 0
	for s := range view.Slots() {
		if s.Local || s.Desired != state.Run || s.State == state.SlotDone {
			continue
		}
		w := &nusav1.RegionWork{Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: s.From, To: s.To, JobVersion: s.JobVersion}
		size += proto.Size(w) + 4 // plus its tag and length
		if size > maxWorkBytes {
			leftOut++
			continue
		}
		out = append(out, w)
	}
	return out, leftOut
}

// updateSummaries makes the summaries of changed jobs match the committed state.
func (u *Uplink) updateSummaries() {
	u.summaries.update(func() func(state.JobKey) *nusav1.JobSummary {
		// The view is read after the list of changed jobs. So the view has every change
		// that put a job on the list.
		view := u.cfg.FSM.View()
		return func(k state.JobKey) *nusav1.JobSummary { return u.cfg.Reporter.Summary(view, k) }
	})
}

// cursor returns a cursor over the summaries. It starts after the summaries that the global
// tier already has.
func (u *Uplink) cursor(w *nusav1.GlobalWelcome) *link.Cursor[*nusav1.JobSummary] {
	return u.summaries.cursor(link.Position(wire.PositionFromProto(w.GetSummaries())))
}
