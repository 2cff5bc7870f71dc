package trust

import (
	"bytes"
	"container/list"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// Bounds of connections whose peer has shown no certificate.
const (
	// strangerPause bounds the time of such a connection without a call in progress, and
	// strangerLimit that of one with calls.
	strangerPause, strangerLimit = 10 * time.Second, 30 * time.Second
	// maxStrangers bounds such connections of one listener. One more closes the oldest.
	maxStrangers = 256
	// maxStrangerBytes bounds what such a connection sends. The largest request is a job, with an
	// access token. maxStrangersBytes bounds what all those of one listener have sent. More closes
	// the oldest, so a slow sender keeps nobody out.
	maxStrangerBytes, maxStrangersBytes = 2 << 20, 32 << 20
	// maxStrangerCalls bounds the calls of such a connection that are in progress.
	maxStrangerCalls = 16
)

// firstContactName is the TLS server name of a client that has no certificate. The server then
// also sends its roots, because such a client knows only a hash of the root.
const firstContactName = "first-contact.nusa"

// FirstContact returns the credentials of a client that has no certificate, or one that has
// expired. It accepts a server that the rules allow, if accept accepts the root of that server.
func FirstContact(accept func(root *x509.Certificate) bool, rules identity.Rules) credentials.TransportCredentials {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: firstContactName,
		// The certificate names no host. VerifyConnection verifies it.
		InsecureSkipVerify: true, SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error { return verifyFirst(cs.PeerCertificates, accept, rules) },
	}
	return &transport{TransportCredentials: credentials.NewTLS(config)}
}

// Anonymous returns the credentials of a client that knows the roots and has no certificate, for
// example one with an access token. It accepts servers that the rules allow.
func Anonymous(roots *pki.Roots, rules identity.Rules) credentials.TransportCredentials {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The certificate names no host. VerifyConnection verifies it.
		InsecureSkipVerify: true, SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			id, err := pki.Verify(cs.PeerCertificates, roots, time.Now())
			if err != nil {
				return err
			}
			return rules.Check(id)
		},
	}
	return &transport{TransportCredentials: credentials.NewTLS(config)}
}

// verifyFirst verifies the certificates that a server sent to a client without a certificate.
func verifyFirst(sent []*x509.Certificate, accept func(root *x509.Certificate) bool, rules identity.Rules) error {
	var anchors, chain []*x509.Certificate
	for i, c := range sent {
		if c.IsCA && accept(c) {
			anchors = append(anchors, c)
		}
		if i == 0 || !bytes.Equal(c.RawIssuer, c.RawSubject) {
			chain = append(chain, c)
		}
	}
	if len(anchors) == 0 {
		return fmt.Errorf("%w: the server is not one of the federation that gave the token, or not the one of --root-hash: check the address and the token", pki.ErrUnknownCA)
	}
	roots, err := pki.NewRoots(anchors...)
	if err != nil {
		return err
	}
	id, err := pki.Verify(chain, roots, time.Now())
	if err != nil {
		return err
	}
	return rules.Check(id)
}

// withRoots returns the own certificate, followed by the roots.
func (l *loaded) withRoots() *tls.Certificate {
	out := l.cert
	out.Certificate = bytesOf(l.cert.Certificate, l.roots.Certs)
	return &out
}

func bytesOf(chain [][]byte, more []*x509.Certificate) [][]byte {
	out := append([][]byte(nil), chain...)
	for _, c := range more {
		out = append(out, c.Raw)
	}
	return out
}

// strangers bounds the connections of one listener whose peer has shown no certificate.
type strangers struct {
	mu    sync.Mutex
	conns list.List // of *stranger, the oldest first
	bytes int       // what all of them have sent
}

// admit returns a connection that ends after strangerPause or strangerLimit, unless Vouch is called.
// raw is what conn encrypts. raw is what ends, because the end of conn waits for the peer.
func (s *strangers) admit(conn, raw net.Conn) *stranger {
	out := &stranger{Conn: conn, raw: raw, of: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns.Len() >= maxStrangers {
		s.closeOldest()
	}
	out.at = s.conns.PushBack(out)
	out.late = time.AfterFunc(strangerPause, out.expire)
	return out
}

// expire closes the connection, unless a call is in progress and strangerLimit has not passed.
func (s *stranger) expire() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	switch {
	case s.at == nil:
	case s.calls > 0 && !s.old:
		s.old = true
		s.late.Reset(strangerLimit - strangerPause)
	default:
		_ = s.raw.Close()
	}
}

// closeOldest closes the oldest connection. The caller holds mu.
func (s *strangers) closeOldest() {
	oldest := s.conns.Front().Value.(*stranger)
	s.remove(oldest)
	_ = oldest.raw.Close()
}

// remove ends the bounds of a connection. The caller holds mu.
func (s *strangers) remove(c *stranger) {
	if c.at == nil {
		return
	}
	c.late.Stop()
	s.conns.Remove(c.at)
	s.bytes -= c.bytes
	c.at = nil
}

// stranger is a connection whose peer has shown no certificate.
type stranger struct {
	net.Conn
	raw  net.Conn
	of   *strangers
	late *time.Timer

	// at is nil once the bounds have ended. of.mu guards this field and the others below.
	at *list.Element
	// bytes counts what the peer has sent, and calls the calls in progress.
	bytes, calls int
	// old: strangerPause has passed.
	old bool
}

// end ends the bounds of the connection.
func (s *stranger) end() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.remove(s)
}

// Read implements net.Conn.
func (s *stranger) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.at == nil {
		return n, err
	}
	s.bytes += n
	s.of.bytes += n
	if s.bytes > maxStrangerBytes {
		_ = s.raw.Close()
		return 0, fmt.Errorf("a client without a certificate has sent more than %d bytes: %w", maxStrangerBytes, net.ErrClosed)
	}
	for s.of.bytes > maxStrangersBytes {
		s.of.closeOldest()
	}
	return n, err
}

// Close implements net.Conn.
func (s *stranger) Close() error {
	s.end()
	return s.Conn.Close()
}

// Tap bounds the calls in progress of a peer that has shown no certificate. A gRPC server calls Tap
// when the headers of a call have arrived, so a refused call has no memory for a request.
func Tap(ctx context.Context, _ *tap.Info) (context.Context, error) {
	s := strangerOf(ctx)
	if s == nil {
		return ctx, nil
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.at == nil {
		return ctx, nil
	}
	if s.calls >= maxStrangerCalls {
		return ctx, status.Errorf(codes.ResourceExhausted, "more than %d calls at once without a certificate", maxStrangerCalls)
	}
	s.calls++
	context.AfterFunc(ctx, func() { // the context of a call ends with the call
		s.of.mu.Lock()
		defer s.of.mu.Unlock()
		s.calls--
	})
	return ctx, nil
}

// strangerOf returns the connection of a call whose peer has shown no certificate, or nil.
func strangerOf(ctx context.Context) *stranger {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(Info)
	if !ok {
		return nil
	}
	return info.stranger
}

// Vouch lets the connection of a call continue although its peer has shown no certificate. The
// caller has verified in another way who makes the call.
func Vouch(ctx context.Context) {
	if s := strangerOf(ctx); s != nil {
		s.end()
	}
}

// Encrypted reports whether the connection of a call is encrypted, perhaps without a
// certificate of the peer.
func Encrypted(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	_, ok = p.AuthInfo.(Info)
	return ok
}
