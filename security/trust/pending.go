package trust

import (
	"container/list"
	"net"
	"sync"
	"time"
)

// Bounds of connections whose peer has not proved its identity yet.
const (
	// handshakeLimit bounds the time of a handshake.
	handshakeLimit = 10 * time.Second
	// maxPending bounds the handshakes of one listener that are in progress.
	maxPending = 1024
)

// pending holds the connections of one listener whose handshake is in progress. When there are
// too many, it closes the oldest. A regular handshake takes some round trips, so connections
// that stay silent cannot keep others out.
type pending struct {
	most int

	mu    sync.Mutex
	conns list.List // of net.Conn, the oldest first
}

// enter adds a connection. The caller calls leave when the handshake has ended.
func (p *pending) enter(c net.Conn) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns.Len() >= p.most {
		oldest := p.conns.Front()
		p.conns.Remove(oldest)
		_ = oldest.Value.(net.Conn).Close()
	}
	at := p.conns.PushBack(c)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns.Remove(at) // removes nothing if another connection has taken the place of c
	}
}
