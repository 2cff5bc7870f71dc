package uplink

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// maxTunnels bounds the concurrent calls through tunnels.
	maxTunnels = 16
	// maxSlots bounds a full set of slot orders.
	maxSlots = 1 << 20
)

// session is one session with the global tier. One goroutine sends and one receives. A
// change only sets a flag. So after a slow send the session sends the latest state, not a
// queue of old states.
type session struct {
	u      *Uplink
	stream globalStream
	client nusav1.FederationClient
	// discovery is for the instances of services in the session with the given id.
	discovery nusav1.DiscoveryClient
	id        string
	wake      chan struct{} // with room for one
	// welcome must be committed before anything else of the session is used. It is nil if
	// the global tier, or a server of the region, has an earlier version. joined is true
	// once welcome is committed.
	welcome *state.JoinFederation
	joined  atomic.Bool
	// hasJoined is closed once the welcome is committed.
	hasJoined chan struct{}
	// level is the feature level in the hello, and global that in the welcome.
	level, global uint32
	// lease is the length of the region's lease. 0: the global tier grants none.
	lease time.Duration
	// reportInterval is the longest pause between two reports.
	reportInterval time.Duration
	inbox          *link.Inbox[*nusav1.SlotOrder] // only the receiver uses inbox

	mu  sync.Mutex
	ack *nusav1.Position // due to be sent; nil: none
	// A flag is true when the value may have changed since it was sent.
	serversDirty bool
	answersDirty bool
	latencyDirty bool
	urgentDirty  bool // for the values that isUrgent compares
	// reportNow: a report is due although its interval has not passed.
	reportNow bool
	// newAsks are asks whose fit counts are due before the next report.
	newAsks []Subscription
	// leaseDue: leadership was verified, so a request for the lease is due.
	leaseDue bool

	// Only the sender uses the following fields.
	cursor *link.Cursor[*nusav1.JobSummary]
	// sent: a message was sent since the sender woke. acked: orders were acknowledged in this
	// session. ackAt is when ack is sent even without another message; zero: not set.
	sent, acked bool
	ackAt       time.Time
	// authAck is the acknowledgement of who may do what that is to be sent, or nil.
	authAck     *nusav1.AuthAck
	sentAnswers map[string]*nusav1.SlotAnswer // by slot
	repeatedAt  time.Time                     // when all answers were last sent
	sentEdges   map[string]sentEdge           // by region
	lastReport  *nusav1.RegionReport
	reportTook  time.Duration // time to make the last report
	reportAt    time.Time     // of the last report
	urgentAt    time.Time     // of the last call of isUrgent
	latencyAt   time.Time
	// formsOf reads the forms of plugins; nil: the server does not accept them. formsSent is the hash of those
	// that it has.
	formsOf    *formReader
	formsSent  uint64
	changesRow bool // the server can read changes of the row
	// confirm is true after a recovery of the global store. Each request for the lease then
	// says whether the region may run anything without an order.
	confirm bool
	// answerPace and summaryPace limit the rate of messages that each change may cause.
	answerPace, summaryPace *wait.Pace
}

type sentEdge struct {
	edge topology.Edge
	at   time.Time
}

func newSession(u *Uplink, stream globalStream, client nusav1.FederationClient, w *nusav1.GlobalWelcome, join *state.JoinFederation, level uint32) *session {
	interval := w.GetReportInterval().AsDuration()
	if interval <= 0 || interval > u.cfg.ReportInterval {
		interval = u.cfg.ReportInterval
	}
	out := &session{
		u: u, stream: stream, client: client, wake: make(chan struct{}, 1), hasJoined: make(chan struct{}), welcome: join, level: level, global: w.GetFeatureLevel(),
		inbox: link.NewInbox[*nusav1.SlotOrder](maxSlots),
		lease: w.GetLease().AsDuration(), reportInterval: interval,
		answersDirty: true, reportNow: true, latencyDirty: true,
		changesRow: w.GetRow() != nil, confirm: w.GetConfirm(), cursor: u.cursor(w), sentAnswers: map[string]*nusav1.SlotAnswer{}, sentEdges: map[string]sentEdge{},
		answerPace: wait.NewPace(coalesce, burst), summaryPace: wait.NewPace(coalesce, burst),
	}
	if w.Forms != nil {
		out.formsOf, out.formsSent = &formReader{}, w.GetForms()
	}
	return out
}

// wakeSender makes the sender check which messages are due.
func (ss *session) wakeSender() {
	select {
	case ss.wake <- struct{}{}:
	default:
	}
}

// update changes flags of the session and wakes the sender.
func (ss *session) update(change func()) {
	ss.mu.Lock()
	change()
	ss.mu.Unlock()
	ss.wakeSender()
}

// clear clears a flag and returns its earlier value.
func (ss *session) clear(flag *bool) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	was := *flag
	*flag = false
	return was
}

// run sends and receives until one of them fails or ctx ends. When ctx ends, it sends a
// goodbye. cancel ends the stream.
func (ss *session) run(ctx context.Context, cancel context.CancelFunc) error {
	ended := make(chan error, 1)
	var calls errgroup.Group
	calls.SetLimit(maxTunnels)
	tunnels, endTunnels := context.WithCancel(context.WithoutCancel(ctx))
	asking, endAsking := context.WithCancel(ctx)
	defer endAsking()
	var asker sync.WaitGroup
	if ss.lease > 0 {
		asker.Go(func() { ss.verifyEach(asking) })
	}
	asker.Go(func() { ss.discover(asking) })
	defer asker.Wait()
	defer endAsking()
	go func() { ended <- ss.receive(ctx, tunnels, &calls) }()
	err, received := ss.sendAll(ctx, ended)
	if ctx.Err() != nil && !received {
		_ = ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Goodbye{
			Goodbye: &nusav1.Goodbye{Message: "the term of this master ends"}}})
		_ = ss.stream.CloseSend()
		<-ended // ends when goodbyeTimeout cuts the stream, at the latest
		received = true
	}
	cancel()
	endTunnels()
	if !received {
		<-ended
	}
	return errors.Join(err, calls.Wait())
}

// discover exchanges the instances of services once the welcome is committed, until ctx ends.
func (ss *session) discover(ctx context.Context) {
	if ss.u.cfg.Discover == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-ss.hasJoined:
		ss.u.cfg.Discover(ctx, ss.discovery, ss.id)
	}
}
