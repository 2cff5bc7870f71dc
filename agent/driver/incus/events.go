package incus

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// events wakes the callers that wait for instances without a supervisor whenever any
// instance has changed its state. The first wait makes the connection. A broken connection
// is replaced, and it also wakes all callers, because the daemon does not repeat events
// that were missed.
type events struct {
	ctx    context.Context
	engine *engine
	once   sync.Once
	done   sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{}
}

// reconnectEvery is the pause before a broken connection is replaced. While there is no
// connection, the waiting callers inspect their instances at this interval.
const reconnectEvery = 2 * time.Second

func newEvents(ctx context.Context, e *engine) *events {
	return &events{ctx: ctx, engine: e, changed: make(chan struct{})}
}

// next returns a channel that is closed at the next change of an instance, or when a change
// may have been missed.
func (e *events) next() <-chan struct{} {
	e.once.Do(func() { e.done.Go(e.run) })
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

func (e *events) wait() { e.done.Wait() }

func (e *events) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *events) run() {
	for e.ctx.Err() == nil {
		e.listen()
		e.wake()
		t := time.NewTimer(reconnectEvery)
		select {
		case <-t.C:
		case <-e.ctx.Done():
			t.Stop()
		}
	}
}

// listen reads events until the connection breaks.
func (e *events) listen() {
	dialer := websocket.Dialer{NetDialContext: e.engine.dial, TLSClientConfig: e.engine.tls, HandshakeTimeout: answerLimit}
	url := "ws" + strings.TrimPrefix(e.engine.url("/1.0/events", map[string][]string{"type": {"lifecycle"}}), "http")
	conn, _, err := dialer.DialContext(e.ctx, url, http.Header{})
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(e.ctx, func() { conn.Close() })()
	e.wake() // the instances may have changed before the connection was made
	for {
		if _, _, err := conn.ReadMessage(); err != nil {
			return
		}
		e.wake()
	}
}
