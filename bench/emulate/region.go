package emulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// retryFrom and retryTo bound the pause between two sessions of a region. The pause
	// doubles after each session that was not welcomed, and is jittered.
	retryFrom = 100 * time.Millisecond
	retryTo   = 5 * time.Second
	// welcomeTimeout bounds the wait for the answer to a hello.
	welcomeTimeout = 30 * time.Second
	// spreadPerRegion spreads the next attempts after a welcomed session has ended: each
	// region waits up to the number of regions times spreadPerRegion.
	spreadPerRegion = time.Millisecond
	// maxSlots bounds the slots of a region. maxTombstones bounds the removed summaries
	// that the outbox remembers.
	maxSlots      = 1 << 20
	maxTombstones = 1024
	// bufferBytes is the size of a connection's buffers. It is small because a thousand
	// connections have such buffers.
	bufferBytes = 8 << 10
)

type globalStream = grpc.BidiStreamingClient[nusav1.RegionMessage, nusav1.GlobalMessage]

// region is one emulated region. The receiver and the sender of its session are two
// goroutines.
type region struct {
	f     *Fleet
	n     int
	place *Place
	// epoch is the id of the cluster. It is also the epoch of the region's summaries, and of
	// its row of round trips.
	epoch string
	// known: the global tier has welcomed the region at least once, so that other regions
	// can report a round trip to it.
	known atomic.Bool
	wake  chan struct{} // room for one

	mu sync.Mutex
	// The following fields hold what a real region has in its log.
	federation string
	term       *nusav1.LeadershipTerm
	fence      uint64
	revision   int64
	position   link.Position
	applied    uint64
	held       map[string]*slot
	jobs       map[string][]*slot
	unanswered map[string]struct{}
	// wholeOrders: the region got all orders, when the global tier had ordersLevel.
	wholeOrders bool
	ordersLevel uint32
	// waiting holds the keys of the slots that wait for room, oldest first.
	waiting []string
	// cpu, memory and instances are sums over the slots that run. placed is the greatest
	// revision of an order.
	cpu, memory, instances int64
	placed                 int64
	summaries              *link.Outbox[*nusav1.JobSummary]
	asks                   []*nusav1.ShapeSubscription
	asksReceived           bool
	// peers holds the hash of each known peer by name. peerHashes holds the hashes of the
	// buckets of peers.
	peers      map[string]uint64
	peerHashes []uint64
	column     *nusav1.Position
	matrix     *nusav1.Position
	// coordinate is the latest coordinate that was sent.
	coordinate *nusav1.Coordinate
	sent       sentRow

	// The following fields belong to the present session.
	inbox *link.Inbox[*nusav1.SlotOrder]
	// globalLevel is the feature level in the welcome.
	globalLevel uint32
	fresh       []string // keys of the slots whose answer was not sent yet
	ackDue      bool
	reports     uint64
	// reportDue and rowDue: the message is due now, before its interval has passed.
	// rowFrom is the id of the lease request that followed the row that RefreshRows
	// awaits; 0 = none.
	reportDue, rowDue bool
	// fitsDue holds the asks whose fit counts are due before the next report.
	fitsDue []*nusav1.ShapeSubscription
	rowFrom uint64
	// leaseID is the id of the latest lease request. granted is the id of the latest request
	// that was granted.
	leaseID, granted uint64
}

func newRegion(f *Fleet, n int, place *Place) *region {
	epoch := fmt.Sprintf("%s%d-%x", f.cfg.Prefix, n, f.began.UnixNano())
	return &region{
		f: f, n: n, place: place, coordinate: coordinate(place, 0), epoch: epoch, wake: make(chan struct{}, 1),
		held: map[string]*slot{}, jobs: map[string][]*slot{}, unanswered: map[string]struct{}{},
		summaries: link.NewOutbox[*nusav1.JobSummary](epoch, maxTombstones),
	}
}

func (r *region) wakeSender() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run opens one session after another until ctx ends or the region leaves. It returns only
// errors that a retry cannot fix.
func (r *region) run(ctx context.Context) error {
	pause := retryFrom
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.f.leaving:
			return nil
		case <-retry.C:
		}
		welcomed, err := r.session(ctx)
		if err != nil {
			return err
		}
		spread := time.Duration(0)
		if welcomed {
			pause = retryFrom
			spread = rand.N(1 + min(retryTo, time.Duration(len(r.f.regions))*spreadPerRegion))
		}
		retry.Reset(spread + time.Duration((0.5+0.5*rand.Float64())*float64(pause)))
		pause = min(2*pause, retryTo)
	}
}

// session holds one session until it ends.
func (r *region) session(ctx context.Context) (welcomed bool, err error) {
	conn, err := serve.Dial(r.f.net, r.f.cfg.Addr, grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slow := time.AfterFunc(welcomeTimeout, cancel)
	defer slow.Stop()
	stream, err := nusav1.NewFederationClient(conn).Session(ctx, grpc.ForceCodecV2(codec{}))
	if err != nil {
		return false, nil
	}
	r.mu.Lock()
	hello := r.hello()
	r.mu.Unlock()
	if stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Hello{Hello: hello}}) != nil {
		return false, nil
	}
	first, err := stream.Recv()
	if err != nil {
		return false, nil
	}
	if refused := first.GetRefused(); refused.GetPermanent() {
		return false, fmt.Errorf("emulated region %s: refused by the global tier: %s", r.place.Name, refused.GetMessage())
	} else if refused != nil {
		return false, nil
	}
	w := first.GetWelcome()
	if w == nil {
		return false, errors.New("the first message of the global tier was no welcome")
	}
	slow.Stop()
	r.f.open.Add(1)
	defer r.f.open.Add(-1)
	s := r.begin(stream, w)
	var sender sync.WaitGroup
	sender.Go(func() {
		if s.run(ctx) != nil {
			cancel() // the receiver ends too
		}
	})
	r.receive(stream)
	cancel()
	sender.Wait()
	if r.end() {
		r.f.connected.Add(-1)
	}
	return true, nil
}

// begin notes the contents of a welcome, and resets the fields that belong to a session.
func (r *region) begin(stream globalStream, w *nusav1.GlobalWelcome) *sender {
	r.known.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.federation, r.term, r.fence = w.GetFederationId(), w.GetLeadershipTerm(), w.GetFence()
	r.revision = max(r.revision, w.GetStoreRevision())
	r.inbox, r.globalLevel = link.NewInbox[*nusav1.SlotOrder](maxSlots), w.GetFeatureLevel()
	r.fresh, r.ackDue, r.reports = nil, false, 0
	r.leaseID, r.granted = 0, 0
	r.reportDue, r.rowDue = true, true
	r.sent.resume(r.epoch, w.GetRow())
	r.applied++
	return newSender(r, stream, w, r.summaries.Cursor(positionOf(w.GetSummaries())))
}

// end notes the end of a session. It reports whether the region held a lease in the
// session.
func (r *region) end() bool {
	if !r.f.isLeaving() {
		r.f.ended.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.granted > 0
	r.granted = 0
	return held
}

// receive handles messages until the stream ends.
func (r *region) receive(stream globalStream) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		switch k := m.GetKind().(type) {
		case *nusav1.GlobalMessage_Orders:
			if r.orders(k.Orders) != nil {
				return
			}
		case *nusav1.GlobalMessage_Lease:
			r.grant(k.Lease)
		case *nusav1.GlobalMessage_Shapes:
			r.mu.Lock()
			r.asks, r.reportDue = k.Shapes.GetAsks(), true
			r.mu.Unlock()
			r.wakeSender()
		case *nusav1.GlobalMessage_AskChanges:
			r.changeAsks(k.AskChanges)
		case *nusav1.GlobalMessage_PeerChanges:
			if r.changePeers(k.PeerChanges) != nil {
				return
			}
		case *nusav1.GlobalMessage_ColumnChanges:
			r.mu.Lock()
			r.column = k.ColumnChanges.GetPosition()
			r.mu.Unlock()
		case *nusav1.GlobalMessage_MatrixChanges:
			r.mu.Lock()
			r.matrix = k.MatrixChanges.GetPosition()
			r.mu.Unlock()
		case *nusav1.GlobalMessage_Refused:
			return
		}
	}
}

// grant notes a granted lease. A lease that was requested after the awaited row shows that
// the global tier has processed the row.
func (r *region) grant(g *nusav1.LeaseGrant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.granted == 0 {
		r.f.connected.Add(1)
	}
	r.granted = max(r.granted, g.GetId())
	if r.rowFrom > 0 && g.GetId() >= r.rowFrom {
		r.rowFrom = 0
		r.f.rows.Add(1)
	}
}

// refreshRow makes the region send a row at once.
func (r *region) refreshRow() {
	r.mu.Lock()
	r.rowDue, r.rowFrom = true, ^uint64(0) // this value holds until the request that follows the row is sent
	r.mu.Unlock()
	r.wakeSender()
}

func position(p link.Position) *nusav1.Position {
	return &nusav1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

func positionOf(p *nusav1.Position) link.Position {
	return link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}
