package trust

import (
	"net"
	"sync"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// open holds the connections whose peers have proved their identity, so that those of a peer
// that is refused later can be closed.
type open struct {
	mu     sync.Mutex
	conns  map[*openConn]struct{}
	refuse func(identity.ID) error
}

// Refuse sets a function that returns why a peer is refused, or nil. It is asked in each
// handshake, and by Recheck. It must not block.
func (s *Source) Refuse(f func(identity.ID) error) {
	if s == nil {
		return
	}
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	s.open.refuse = f
}

// Recheck closes the connections whose peers are refused now.
func (s *Source) Recheck() {
	if s == nil {
		return
	}
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	if s.open.refuse == nil {
		return
	}
	for c := range s.open.conns {
		if err := s.open.refuse(c.id); err != nil {
			s.opts.Logger.Info("a connection is closed", "peer", c.id.String(), "reason", err)
			_ = c.raw.Close()
		}
	}
}

// refused returns why a peer is refused.
func (s *Source) refused(id identity.ID) error {
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	if s.open.refuse == nil {
		return nil
	}
	return s.open.refuse(id)
}

// note remembers a connection, which Recheck closes by closing raw, until the caller calls leave.
func (s *Source) note(raw net.Conn, id identity.ID) (leave func(), err error) {
	c := &openConn{raw, id}
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	if s.open.refuse != nil { // the peer may have been banned since the handshake
		if err := s.open.refuse(id); err != nil {
			_ = raw.Close()
			return nil, err
		}
	}
	if s.open.conns == nil {
		s.open.conns = map[*openConn]struct{}{}
	}
	s.open.conns[c] = struct{}{}
	return func() {
		s.open.mu.Lock()
		defer s.open.mu.Unlock()
		delete(s.open.conns, c)
	}, nil
}

// openConn is a connection of a known peer.
type openConn struct {
	raw net.Conn
	id  identity.ID
}

// track returns conn as a connection that Recheck can close by closing raw. With a nil Source
// the result is conn.
func (s *Source) track(conn, raw net.Conn, id identity.ID) (net.Conn, error) {
	if s == nil {
		return conn, nil
	}
	leave, err := s.note(raw, id)
	if err != nil {
		return nil, err
	}
	return &tracked{conn, leave}, nil
}

// tracked is a connection that leaves the open ones when it is closed.
type tracked struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (t *tracked) Close() error {
	t.leave()
	return t.Conn.Close()
}
