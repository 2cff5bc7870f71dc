package trust

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// Bounds of connections whose peer has shown no certificate.
const (
	// strangerLimit bounds the time of such a connection.
	strangerLimit = 30 * time.Second
	// maxStrangers bounds such connections of one listener.
	maxStrangers = 256
)

// firstContactName is the TLS server name of a client that has no certificate. The server then
// also sends its roots, of which such a client knows only a hash.
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
		return fmt.Errorf("%w: the server is not one of the federation that gave the token: check the address and the token", pki.ErrUnknownCA)
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
type strangers struct{ pending }

// admit returns a connection that ends after strangerLimit, unless Vouch is called.
func (s *strangers) admit(conn net.Conn) *stranger {
	out := &stranger{Conn: conn}
	leave := s.enter(conn)
	late := time.AfterFunc(strangerLimit, func() { _ = conn.Close() })
	out.end = sync.OnceFunc(func() {
		late.Stop()
		leave()
	})
	return out
}

// stranger is a connection whose peer has shown no certificate.
type stranger struct {
	net.Conn
	// end ends the bounds of the connection.
	end func()
}

// Close implements net.Conn.
func (s *stranger) Close() error {
	s.end()
	return s.Conn.Close()
}

// Vouch lets the connection of a call continue although its peer has shown no certificate. The
// caller has verified in another way who makes the call.
func Vouch(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	if info, ok := p.AuthInfo.(Info); ok && info.stranger != nil {
		info.stranger.end()
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
