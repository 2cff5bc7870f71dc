package trust

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// Bounds of the lines of the log about refused peers: refusalsMost for each reason within
// refusalsWithin. So a flood of one reason does not hide the others.
const (
	refusalsMost   = 5
	refusalsWithin = time.Second
)

// refusalReasons are the reasons that are counted apart. All other reasons are counted together.
var refusalReasons = []error{
	identity.ErrNotExpected, ErrFederation, pki.ErrExpired, pki.ErrNotYetValid, pki.ErrUnknownCA, pki.ErrName,
	pki.ErrNotLeaf, pki.ErrUsage, pki.ErrOutsideRegion, pki.ErrKey,
}

// refusals bounds the lines of the log about refused peers.
type refusals struct {
	mu sync.Mutex
	// next is the end of the present interval, and logged counts its lines by reason.
	next   time.Time
	logged map[error]int
	// quiet counts the refusals without a line since the last line.
	quiet int
	// counted are all refusals by the text of their reason.
	counted map[string]int
}

// Refused returns how many peers were refused in the handshake, by the text of the reason.
func (s *Source) Refused() map[string]int {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	return maps.Clone(s.refusals.counted)
}

// Refuse counts and logs that a peer was refused, for servers that use TLS.
func (s *Source) Refuse(addr net.Addr, err error) { s.refuse(addr, err) }

// refuse counts and logs that a peer was refused.
func (s *Source) refuse(addr net.Addr, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return // the peer went away, for example a check of an open port
	}
	var why error
	for _, one := range refusalReasons {
		if errors.Is(err, one) {
			why = one
			break
		}
	}
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	if s.refusals.counted == nil {
		s.refusals.counted = map[string]int{}
	}
	text := "other"
	if why != nil {
		text = why.Error()
	}
	s.refusals.counted[text]++
	now := s.opts.Now()
	// A longer rest than refusalsWithin means that the clock was set back.
	rest := s.refusals.next.Sub(now)
	if rest <= 0 || rest > refusalsWithin {
		s.refusals.next, s.refusals.logged = now.Add(refusalsWithin), map[error]int{}
	}
	if s.refusals.logged[why] >= refusalsMost {
		s.refusals.quiet++
		return
	}
	s.refusals.logged[why]++
	s.opts.Logger.Warn("a connection is refused", "peer", addr.String(), "error", err, "others", s.refusals.quiet)
	s.refusals.quiet = 0
}

// open holds the connections whose peers have proved their identity, so that those of a peer
// that is refused later can be closed.
type open struct {
	mu     sync.Mutex
	conns  map[*openConn]struct{}
	refuse RefuseFunc
}

// Key is the SHA-256 of a public key (SubjectPublicKeyInfo).
type Key = [sha256.Size]byte

func keyOf(c *x509.Certificate) Key { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// RefuseFunc returns why the peer with an ID and a key is refused, or nil.
type RefuseFunc func(identity.ID, Key) error

// RefuseIf sets a function that is asked in each handshake, and by Recheck. It must not block.
func (s *Source) RefuseIf(f RefuseFunc) {
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
		if err := s.open.refuse(c.id, c.key); err != nil {
			s.opts.Logger.Info("a connection is closed", "peer", c.id.String(), "reason", err)
			_ = c.raw.Close()
		}
	}
}

// refused returns why a peer is refused.
func (s *Source) refused(id identity.ID, key Key) error {
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	if s.open.refuse == nil {
		return nil
	}
	return s.open.refuse(id, key)
}

// note remembers a connection, which Recheck closes by closing raw, until the caller calls leave.
func (s *Source) note(raw net.Conn, id identity.ID, state tls.ConnectionState) (leave func(), err error) {
	chain := state.PeerCertificates
	key := keyOf(chain[0])
	c := &openConn{raw, id, key, pki.IssuerKeyID(chain)}
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	if s.open.refuse != nil { // the peer may have been banned since the handshake
		if err := s.open.refuse(id, key); err != nil {
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
	key Key
	// issuer is the number by which the peer's certificates name their root.
	issuer string
}

// track returns conn as a connection that Recheck can close by closing raw. With a nil Source
// the result is conn.
func (s *Source) track(conn, raw net.Conn, id identity.ID, state tls.ConnectionState) (net.Conn, error) {
	if s == nil {
		return conn, nil
	}
	leave, err := s.note(raw, id, state)
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
