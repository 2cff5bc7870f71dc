package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// helloWait is how long a new stream may take to send its hello. How long this server
	// takes to handle the hello does not count.
	helloWait = 10 * time.Second
	// sessionQueue bounds the messages that wait to be sent to a region besides
	// the sets: lease grants, acknowledgements, tunnel requests.
	sessionQueue = 256
	// receiveQueue bounds the messages of a region that wait to be handled. Behind more of
	// them its leases wait too.
	receiveQueue = 64
	// refusalWait is how long a refused region may take to read the messages
	// that were sent before.
	refusalWait = 2 * time.Second
)

var (
	errSlowRegion = errors.New("the region does not read fast enough")
	errGoodbye    = errors.New("the region said goodbye")
)

// refusal ends a session with a text for the region.
type refusal struct {
	message   string
	permanent bool
	// ofRegion as in region.Effect.
	ofRegion bool
	// tellWork as in nusav1.Refused.
	tellWork bool
}

// Error implements error.
func (r *refusal) Error() string { return r.message }

// Stream is a region's stream.
type Stream = grpc.BidiStreamingServer[nusav1.RegionMessage, nusav1.GlobalMessage]

// session is one stream of a region's master. Fields without a comment are set
// before the stream is opened and do not change.
type session struct {
	server *Server
	cancel context.CancelCauseFunc
	out    chan *nusav1.GlobalMessage
	woken  chan struct{} // capacity 1
	opened atomic.Bool
	// greeted: the hello has arrived. busy: a message that has arrived is not handled yet.
	greeted, busy atomic.Bool
	// queue has the messages that have arrived, but for leases and acknowledgements.
	queue chan *nusav1.RegionMessage
	// shared is the part that the rest of the server sees.
	shared state.Session

	// Only the sender uses edges: those of the column that it is about to send.
	edges []topology.Edge

	// Set by open, then only read.
	region string
	inbox  *link.Inbox[*nusav1.JobSummary]

	// The state's lock guards these. closed: the handler has returned.
	closed bool
	// fence of the region at the welcome.
	fence  uint64
	cursor *link.Cursor[state.Order]
	// known is what the hello says that the region has; nil: it takes whole sets only.
	known *nusav1.KnownSets
	// peersVersion is the version of the peers that the region has, 0 before the first.
	peersVersion uint64
	// asks are the hashes of the asks that the region has, sorted, once asksSent.
	asks     []uint64
	asksSent bool
	// columnAt is when the latest column was sent. matrix is the compact matrix
	// to send. matrixAt is when the latest matrix was set, or when the session opened
	// if there was none; matrixSent says that there was one.
	columnAt   time.Duration
	confirmed  uint64 // as Server.confirms
	matrix     *nusav1.GlobalMessage
	matrixAt   time.Duration
	matrixSent bool
	// matrixVersion is the version of the matrix that the region has; 0: none of this term.
	matrixVersion uint64
}

func (s *Server) newSession(cancel context.CancelCauseFunc) *session {
	c := &session{
		server: s, cancel: cancel,
		out: make(chan *nusav1.GlobalMessage, sessionQueue), woken: make(chan struct{}, 1),
		queue: make(chan *nusav1.RegionMessage, receiveQueue),
	}
	c.shared = state.Session{
		Number: s.streams.Add(1), Wake: c.wake,
		Refuse: func(message string) { cancel(&refusal{message: message}) },
	}
	return c
}

func (c *session) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// post queues a message; a region that does not read fast enough is cut off.
func (c *session) post(m *nusav1.GlobalMessage) {
	select {
	case c.out <- m:
	default:
		c.cancel(errSlowRegion)
	}
}

// Serve serves a region's stream. One goroutine sends and one receives; both
// end at the latest when Serve has returned, since the stream ends then. So a
// region that has stopped reading blocks nothing.
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
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-c.out:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-c.woken:
			for {
				m := c.next()
				if m == nil {
					break
				}
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
	}
}

// endStream returns the status of a session that ended, by its cause. A refusal
// is sent as a message of its own, once the sender has ended.
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

// causeText returns why a session ended, for people. When a connection breaks,
// gRPC says only that a context was canceled.
func causeText(cause error) string {
	if cause == nil || errors.Is(cause, context.Canceled) || status.Code(cause) == codes.Canceled {
		return "the connection ended"
	}
	return status.Convert(cause).Message()
}

// receive reads until the stream ends, and returns why it ended.
func (c *session) receive(ctx context.Context, stream Stream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	c.greeted.Store(true)
	if err := c.server.open(ctx, c, first.GetHello()); err != nil {
		c.server.noteRefused(first.GetHello(), err)
		return err
	}
	done := make(chan error, 1)
	go func() {
		done <- c.handleEach(ctx)
	}()
	err = c.receiveEach(ctx, stream)
	close(c.queue)
	return cmp.Or(<-done, err) // what has arrived is handled first
}

// receiveEach reads messages until the stream ends. Leases and acknowledgements are handled
// at once: they do not wait for the store, as answers do.
func (c *session) receiveEach(ctx context.Context, stream Stream) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if c.server.handleLease(c, m) {
			continue
		}
		c.busy.Store(true)
		select {
		case c.queue <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handleEach handles the queued messages until the queue is closed, or one ends the
// session.
func (c *session) handleEach(ctx context.Context) error {
	var ended error
	for m := range c.queue {
		if ended == nil {
			ended = c.server.handle(ctx, c, m)
		}
		if ended != nil {
			c.cancel(ended)
		}
		if len(c.queue) == 0 {
			c.busy.Store(false)
		}
	}
	return ended
}
