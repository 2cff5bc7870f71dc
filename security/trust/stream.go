package trust

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/guard"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// streamProtocol is the name of a stream's protocol in the handshake. So a connection that is
// meant for gRPC is refused.
const streamProtocol = "nusa-stream"

// streamAccepted is the byte by which a server says that it has accepted the peer.
const streamAccepted = 1

// streamConfig returns the TLS configuration of streams.
func (s *Source) streamConfig(rules identity.Rules) *tls.Config {
	c := s.config(rules)
	c.NextProtos = []string{streamProtocol}
	verify := c.VerifyConnection
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if cs.NegotiatedProtocol != streamProtocol {
			return fmt.Errorf("the peer speaks the protocol %q, not %q: does it use the right port?", cs.NegotiatedProtocol, streamProtocol)
		}
		return verify(cs)
	}
	return c
}

// Listener returns a listener whose connections are encrypted. It accepts only peers that the
// rules allow. The handshake of a connection is a part of its first Read or Write, so a silent
// peer delays nobody. With a nil Source the result is the given listener.
func (s *Source) Listener(lis net.Listener, rules identity.Rules) net.Listener {
	if s == nil {
		return lis
	}
	return &listener{Listener: lis, source: s, config: s.streamConfig(rules), pending: &guard.Waiting{Most: guard.Most}}
}

// Secure encrypts a stream that this member has dialled. The peer must be one that the rules
// allow. With a nil Source the result is the given stream. After an error the stream is closed.
func (s *Source) Secure(ctx context.Context, raw net.Conn, rules identity.Rules) (net.Conn, error) {
	if s == nil {
		return raw, nil
	}
	ctx, cancel := context.WithTimeout(ctx, guard.Limit)
	defer cancel()
	conn := tls.Client(raw, s.streamConfig(rules))
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to %s: %w", raw.RemoteAddr(), explain(err))
	}
	// The server sends one byte once it has accepted this client: see accepted.
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to %s: %w", raw.RemoteAddr(), explain(err))
	}
	state := conn.ConnectionState()
	id, err := idOf(state)
	if err != nil {
		raw.Close()
		return nil, err
	}
	return s.track(conn, raw, id, state)
}

type listener struct {
	net.Listener
	source *Source
	config *tls.Config
	// pending are the connections whose handshake is in progress.
	pending *guard.Waiting
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &serverStream{Conn: tls.Server(raw, l.config), raw: raw, leave: l.pending.Enter(raw), source: l.source}
	// A peer that says nothing is closed, even if nobody reads.
	c.late = time.AfterFunc(guard.Limit, func() { _ = raw.Close() })
	return c, nil
}

// serverStream is a connection of a listener. Its first Read or Write waits for the handshake.
type serverStream struct {
	*tls.Conn
	raw    net.Conn
	source *Source
	leave  func()
	late   *time.Timer

	once sync.Once
	err  error
	// mu guards forget, which is set while Recheck knows the connection.
	mu     sync.Mutex
	forget func()
	closed bool
}

// handshake returns the error of the handshake, which runs once.
func (a *serverStream) handshake() error {
	a.once.Do(func() {
		a.err = a.Conn.Handshake()
		if a.err == nil {
			_, a.err = a.Conn.Write([]byte{streamAccepted})
		}
		a.ended()
		if a.err == nil {
			a.err = a.note()
		}
		if a.err != nil {
			a.source.refuse(a.RemoteAddr(), a.err)
			_ = a.Conn.Close()
		}
	})
	return a.err
}

// note lets Recheck know the connection until it is closed.
func (a *serverStream) note() error {
	state := a.ConnectionState()
	id, err := idOf(state)
	if err != nil {
		return err
	}
	forget, err := a.source.note(a.raw, id, state)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		forget()
		return nil
	}
	a.forget = forget
	return nil
}

// ended says that the handshake has ended, or that it will not begin.
func (a *serverStream) ended() {
	a.late.Stop()
	a.leave()
}

// Read implements net.Conn.
func (a *serverStream) Read(b []byte) (int, error) {
	if err := a.handshake(); err != nil {
		return 0, err
	}
	return a.Conn.Read(b)
}

// Write implements net.Conn.
func (a *serverStream) Write(b []byte) (int, error) {
	if err := a.handshake(); err != nil {
		return 0, err
	}
	return a.Conn.Write(b)
}

// Close implements net.Conn.
func (a *serverStream) Close() error {
	a.ended()
	a.mu.Lock()
	a.closed = true
	if a.forget != nil {
		a.forget()
	}
	a.mu.Unlock()
	return a.Conn.Close()
}
