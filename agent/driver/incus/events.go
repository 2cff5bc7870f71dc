package incus

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// events wakes all waiters for instances without a supervisor whenever an instance has
// changed its state. The first wait makes the connection, and a broken connection is
// replaced. Each break wakes all waiters too, because the daemon does not repeat missed
// events.
type events struct {
	ctx    context.Context
	engine *engine
	once   sync.Once
	done   sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{}
}

// reconnectEvery is the pause between two connections, and between two inspections
// of the instances while there are no events.
const reconnectEvery = 2 * time.Second

func newEvents(ctx context.Context, e *engine) *events {
	return &events{ctx: ctx, engine: e, changed: make(chan struct{})}
}

// next returns a channel that is closed at the next change, or when a change may have
// been missed.
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
