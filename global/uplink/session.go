package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// helloWait is how long a new stream may take to send its hello. The time in which this server
	// handles the hello does not count.
	helloWait = 10 * time.Second
	// sessionQueue bounds the messages, except the sets, that wait to be sent to a region: lease
	// grants, acknowledgements, tunnel requests.
	sessionQueue = 256
	// receiveQueue bounds the messages of a region that wait to be handled. If there are more, the
	// region's lease requests wait too.
	receiveQueue = 64
	// refusalWait is how long a refused region may take to read the messages that were sent before
	// the refusal.
	refusalWait = 2 * time.Second
	// companyWait is how long messages that the region does not wait for are held back. If a
	// message that the region waits for follows in that time, one write to the connection carries
	// all of them. These messages are orders that only show the region its own answers, and
	// acknowledgements of summaries.
	companyWait = 200 * time.Millisecond
	// companyPerRegion prolongs companyWait in a federation with many regions, up to maxCompanyWait,
	// because each of them gets fewer messages.
	companyPerRegion = 500 * time.Microsecond
	maxCompanyWait   = 500 * time.Millisecond
	// quietAfter is the time without held-back messages after which the next of them is sent
	// at once.
	quietAfter = time.Second
	// leaseLevel is the feature level of the global tier from which a region binds its log to the
	// federation at the welcome. Later levels change nothing for a session that has begun.
	leaseLevel = 1
)

var (
	errSlowRegion = errors.New("the region does not read fast enough")
	errGoodbye    = errors.New("the region said goodbye")
	// errLevel ends a session whose welcome named a level below leaseLevel, once all global servers
	// have that level. The next welcome can bind the region's log to the federation.
	errLevel = status.Error(codes.Unavailable, "all global servers support more since they were upgraded: another session begins")
)

// refusal ends a session, with a text for the region.
type refusal struct {
	message   string
	permanent bool
	// ofRegion and otherCluster are as in region.Effect.
	ofRegion, otherCluster bool
	// tellWork is as in nusav1.Refused.
	tellWork bool
}

// Error implements error.
func (r *refusal) Error() string { return r.message }

// Stream is a region's stream.
type Stream = grpc.BidiStreamingServer[nusav1.RegionMessage, nusav1.GlobalMessage]

// session is one stream of a region's master. Fields without a comment are set before the stream is
// opened, and do not change.
type session struct {
	server *Server
	cancel context.CancelCauseFunc
	outbox outbox
	woken  chan struct{} // capacity 1
	// late wakes the sender when companyWait is over.
	late   *time.Timer
	opened atomic.Bool
	// greeted: the hello has arrived. unhandled counts the messages that have arrived and are not
	// handled yet, and the answers that are not stored yet.
	greeted   atomic.Bool
	unhandled atomic.Int32
	// queue holds the messages that wait, because the answers of an earlier message did not fit into
	// the queue of the committer. It is nil until that happens. Lease requests and acknowledgements do
	// not wait. Only the receiver uses this field.
	queue chan *nusav1.RegionMessage
	// shared is the part that the rest of the server uses.
	shared state.Session
	tunnel tunnelOnce

	// sending is locked while messages are sent. It guards stream and unread. stream is set while the sender runs.
	sending sync.Mutex
	stream  Stream
	unread  unread

	// edges are the edges of the column that the sender is about to send, and list has the orders. complete:
	// nothing has to be sent after the latest message of next. Only the sender uses these fields.
	edges    *[]topology.Edge
	list     *orderList
	complete bool

	// open sets region and inbox. They do not change after that.
	region string
	inbox  *link.Inbox[summary]

	// The state's lock guards the following fields. closed: the handler has returned.
	closed bool
	// fence is the region's fence at the welcome. level is the feature level of the global tier that
	// the welcome names.
	fence  uint64
	level  uint32
	cursor *link.Cursor[state.Order]
	// held is the position of the orders that the region has from an earlier leadership term. It must be
	// sent before later orders. Nil: it was sent, or the region did not have them.
	held *nusav1.Position
	// ordersAt is the position of the region's orders when the session began.
	ordersAt uint64
	// lateDue: late runs. laterAt is the time of the latest call of wakeLater. summarised is the position of the summaries that is not acknowledged yet.
	// Nil: all are.
	lateDue    bool
	laterAt    time.Duration
	summarised *nusav1.Position
	// known is what the region has, as its hello says. Nil: the region accepts only whole sets.
	known *nusav1.KnownSets
	// keysSent is the latest goal that was sent to the region.
	keysSent *nusav1.KeyGoal
	// peersVersion is the version of the peers that the region has; 0: none yet.
	peersVersion uint64
	// asks are the sorted hashes of the asks that the region has. They are valid once asksSent is
	// set.
	asks     []uint64
	asksSent bool
	// columnAt is when the latest column was sent. matrix is the message with the compact matrix
	// that waits to be sent. matrixAt is when the latest matrix was set; without one, it is when
	// the session opened. matrixSent: a matrix was set.
	columnAt   time.Duration
	confirmed  uint64 // the value of Server.confirms at the last confirmation
	matrix     *nusav1.GlobalMessage
	matrixAt   time.Duration
	matrixSent bool
	// matrixVersion is the version of the matrix that the region has; 0: it has none of this term.
	matrixVersion uint64
}

func (s *Server) newSession(cancel context.CancelCauseFunc) *session {
	c := &session{server: s, cancel: cancel, woken: make(chan struct{}, 1)}
	c.tunnel.dial = c.dial
	c.late = time.AfterFunc(time.Hour, c.wake)
	c.late.Stop()
	c.shared = state.Session{
		Number: s.streams.Add(1), Wake: c.wake, WakeLater: c.wakeLater,
		Refuse: func(message string) { cancel(&refusal{message: message}) },
	}
	return c
}

// dial makes the tunnel to the region's own services.
func (c *session) dial() (*grpc.ClientConn, error) {
	conn, err := c.server.Hub.Conn("region "+c.region, func(_ context.Context, id string) error {
		c.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Tunnel{Tunnel: &nusav1.TunnelRequest{Id: id}}})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("tunnels to region %s: %w", c.region, err)
	}
	return conn, nil
}

// tunnelOnce makes the connection of a session at the first use, and none after close.
type tunnelOnce struct {
	dial   func() (*grpc.ClientConn, error)
	mu     sync.Mutex
	made   *grpc.ClientConn
	closed bool
}

func (t *tunnelOnce) conn() (*grpc.ClientConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.made != nil {
		return t.made, nil // after close, its calls fail
	}
	if t.closed {
		return nil, status.Error(codes.Unavailable, "the region's session has ended")
	}
	var err error
	t.made, err = t.dial()
	return t.made, err
}

func (t *tunnelOnce) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.made != nil {
		_ = t.made.Close() // fails only if it is closed already
	}
}

func (c *session) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// wakeLater wakes the sender after companyWait or a little later, or at once after a quiet time. If
// the sender sends earlier for another reason, it sends everything. The lock is held.
func (c *session) wakeLater() {
	now := c.server.st.Clock()
	quiet := now-c.laterAt >= quietAfter
	c.laterAt = now
	switch {
	case quiet:
		c.wake()
	case !c.lateDue:
		c.lateDue = true
		perRegion := time.Duration(len(c.server.st.Regions)) * companyPerRegion
		c.late.Reset(min(max(companyWait, perRegion), maxCompanyWait))
	}
}

// post queues a message for the sender. It ends the session of a region that does not read fast enough.
func (c *session) post(m *nusav1.GlobalMessage) {
	if !c.outbox.put(m) {
		c.cancel(errSlowRegion)
	}
	c.wake()
}

// grant sends the grant of a lease in this goroutine, the receiver, because another goroutine takes longer to wake
// than to send. The receiver must never wait for a region that does not read. So the sender sends the grant if a
// message is sent now or waits, or if the region has not read enough. latest is the id of the latest grant that the
// region has.
func (c *session) grant(g *grantMessage, latest uint64) {
	if !c.sending.TryLock() {
		c.post(&g.message)
		return
	}
	defer c.sending.Unlock()
	c.unread.granted(latest)
	if c.stream == nil || c.outbox.len() > 0 || !c.unread.few() {
		c.post(&g.message)
		return
	}
	c.unread.note(&g.message)
	if err := c.stream.Send(&g.message); err != nil {
		c.cancel(err)
		return
	}
	grantMessages.Put(g) // it is encoded
}

// Serve serves a region's stream. One goroutine sends and one receives. Both end soon after Serve
// has returned, because the stream ends then. So a region that has stopped reading blocks nothing.
func (s *Server) Serve(stream Stream) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.Context, func() { cancel(state.ErrNotActive) })()
	c := s.newSession(cancel)
	defer time.AfterFunc(helloWait, func() {
		if !c.greeted.Load() {
			cancel(fmt.Errorf("no hello within %s", helloWait))
		}
	}).Stop()
	sent := make(chan struct{})
	go func() { cancel(c.receive(ctx, stream)) }()
	go func() {
		defer close(sent)
		cancel(c.send(ctx, stream))
	}()
	<-ctx.Done()
	cause := context.Cause(ctx)
	s.endSession(c, cause)
	return endStream(stream, sent, cause)
}

// send writes the waiting messages until the session ends.
func (c *session) send(ctx context.Context, stream Stream) error {
	c.setStream(stream)
	defer c.setStream(nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.woken:
			if err := c.sendWaiting(ctx, stream); err != nil {
				return err
			}
		}
	}
}

// setStream sets the stream on which the receiver may send grants.
func (c *session) setStream(stream Stream) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.stream = stream
}

// sendWaiting sends the messages in the outbox, and everything else that the region lacks.
func (c *session) sendWaiting(ctx context.Context, stream Stream) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.complete = false
	for {
		m := c.outbox.take()
		if m == nil && !c.complete {
			m = c.next()
		}
		if m == nil {
			return nil
		}
		c.unread.note(m)
		err := stream.Send(m)
		if isLarge(m) {
			c.server.endTurn(c)
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// endStream returns the status of a session that ended, depending on the cause. A refusal is sent
// as a message of its own, once the sender has ended.
func endStream(stream Stream, sent <-chan struct{}, cause error) error {
	var refused *refusal
	switch {
	case errors.As(cause, &refused):
		late := time.NewTimer(refusalWait)
		defer late.Stop()
		select {
		case <-sent:
		case <-late.C:
			return status.Error(codes.Unavailable, cause.Error())
		}
		return stream.Send(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Refused{
			Refused: &nusav1.Refused{Message: refused.message, Permanent: refused.permanent, TellWork: refused.tellWork},
		}})
	case errors.Is(cause, errGoodbye):
		return nil
	case errors.Is(cause, state.ErrNotActive), errors.Is(cause, errSlowRegion):
		return status.Error(codes.Unavailable, cause.Error())
	case cause != nil && status.Code(cause) != codes.Unknown:
		return cause
	}
	return status.Errorf(codes.InvalidArgument, "session ended: %v", cause)
}

// causeText returns why a session ended, for users. When a connection breaks, gRPC says only that a
// context was canceled.
func causeText(cause error) string {
	if cause == nil || errors.Is(cause, context.Canceled) || status.Code(cause) == codes.Canceled {
		return "the connection ended"
	}
	return status.Convert(cause).Message()
}

// receive receives messages until the stream ends, and returns why it ended.
func (c *session) receive(ctx context.Context, stream Stream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	c.greeted.Store(true)
	if err := c.server.checkIdentity(ctx, first.GetHello()); err != nil {
		return err
	}
	if err := c.server.open(ctx, c, first.GetHello()); err != nil {
		c.server.noteRefused(first.GetHello(), err)
		return err
	}
	return c.receiveEach(ctx, stream)
}

// receiveEach receives messages until the stream ends, and handles each of them at once. Answers
// are queued for the committer. If the committer's queue is full, the answers wait in c.queue. All
// later messages of the session except lease requests and acknowledgements wait there, too. Another
// goroutine handles the messages in c.queue.
func (c *session) receiveEach(ctx context.Context, stream Stream) error {
	var done chan error
	err := c.eachMessage(stream, func(m *nusav1.RegionMessage) error {
		if c.queue == nil {
			rest, err := c.server.handle(ctx, c, m, false)
			if len(rest) == 0 || err != nil {
				return err
			}
			m = &nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: rest}}}
			c.queue, done = make(chan *nusav1.RegionMessage, receiveQueue), make(chan error, 1)
			go func() { done <- c.handleEach(ctx) }()
		}
		c.unhandled.Add(1)
		select {
		case c.queue <- m:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if done == nil {
		return err
	}
	close(c.queue)
	return cmp.Or(<-done, err) // messages that have arrived are handled first
}

// eachMessage receives messages until the stream ends or handle returns an error. It handles lease
// requests and acknowledgements itself.
func (c *session) eachMessage(stream Stream, handle func(*nusav1.RegionMessage) error) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if c.server.handleLease(c, m) {
			continue
		}
		c.unhandled.Add(1)
		err = handle(m)
		c.unhandled.Add(-1)
		if err != nil {
			return err
		}
	}
}

// handleEach handles the queued messages until the queue is closed. After an error it ends the
// session, and handles none of the remaining messages.
func (c *session) handleEach(ctx context.Context) error {
	var ended error
	for m := range c.queue {
		if ended == nil {
			_, ended = c.server.handle(ctx, c, m, true)
		}
		if ended != nil {
			c.cancel(ended)
		}
		c.unhandled.Add(-1)
	}
	return ended
}
