package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/nusa-scheduler/nusa/internal/guard"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// ErrRefused means that the other end refused the certificate of this member.
var ErrRefused = errors.New("the peer refuses the certificate of this program: the log of the peer says why")

// Info is the AuthInfo of an encrypted connection.
type Info struct {
	credentials.CommonAuthInfo
	// ID is the zero ID if the peer has shown no certificate.
	ID identity.ID
	// stranger is the connection of a peer that has shown no certificate.
	stranger *stranger
	// local: the peer is the administrator of this machine.
	local bool
	// rules are those of the listener, for a peer that has shown no certificate.
	rules identity.Rules
}

// AuthType implements credentials.AuthInfo.
func (Info) AuthType() string { return "nusa" }

// PeerOf returns the identity of the peer of a call, or of a stream at either end. It returns
// false if the connection is not encrypted, and if the peer has shown no certificate.
func PeerOf(ctx context.Context) (identity.ID, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return identity.ID{}, false
	}
	info, ok := p.AuthInfo.(Info)
	return info.ID, ok && info.ID.Kind != identity.None
}

// Carried is a connection inside another one whose peer has proved its identity: a tunnel. A
// server with credentials accepts such a connection without another handshake.
type Carried interface {
	net.Conn
	// Carrier returns the peer of the outer connection. It returns false if that peer has
	// proved no identity.
	Carrier() (identity.ID, bool)
}

// Administered is a connection of a user who may administer this machine. A server with credentials
// accepts such a connection without a handshake.
type Administered interface {
	net.Conn
	Administrator()
}

// Server returns the credentials of a gRPC server. It accepts clients that the rules allow, and
// clients without a certificate, whose calls package gate refuses with few exceptions. The
// result is nil for a nil Source.
func (s *Source) Server(rules identity.Rules) credentials.TransportCredentials {
	if s == nil {
		return nil
	}
	c := s.config(rules)
	admitStrangers(c)
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == firstContactName {
			return s.get().withRoots(), nil
		}
		return &s.get().cert, nil
	}
	return &transport{TransportCredentials: credentials.NewTLS(c), source: s,
		pending: &guard.Waiting{Most: guard.Most}, strangers: &strangers{}, rules: rules}
}

// Client returns the credentials for connections to a gRPC server that the rules allow. With
// a nil Source the connections are not encrypted.
func (s *Source) Client(rules identity.Rules) credentials.TransportCredentials {
	if s == nil {
		return insecure.NewCredentials()
	}
	return &transport{TransportCredentials: credentials.NewTLS(s.config(rules)), source: s}
}

// Dial returns Client as an option for a connection.
func (s *Source) Dial(rules identity.Rules) grpc.DialOption {
	return grpc.WithTransportCredentials(s.Client(rules))
}

// transport is gRPC's TLS with the identity of the peer.
type transport struct {
	credentials.TransportCredentials
	// source is nil at a client without a certificate.
	source *Source
	// pending and strangers are nil at a client.
	pending   *guard.Waiting
	strangers *strangers
	rules     identity.Rules
}

// ServerHandshake implements credentials.TransportCredentials. gRPC bounds its time.
func (t *transport) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if inner, ok := raw.(Carried); ok {
		id, ok := inner.Carrier()
		if !ok {
			return nil, nil, errors.New("tunnel in a connection that is not encrypted")
		}
		return raw, info(id), nil
	}
	if local, ok := raw.(Administered); ok {
		out := info(root(t.source.ID()))
		out.local = true
		return local, out, nil
	}
	if web, ok := raw.(*inside); ok {
		return t.inside(web)
	}
	if one, ok := raw.(*onlyConn); ok {
		return one.transport.ServerHandshake(one.Conn)
	}
	leave := t.pending.Enter(raw)
	conn, auth, err := t.TransportCredentials.ServerHandshake(raw)
	leave()
	if err != nil {
		t.source.refuse(raw.RemoteAddr(), err)
		return nil, nil, err
	}
	if len(auth.(credentials.TLSInfo).State.PeerCertificates) == 0 {
		s := t.strangers.admit(conn, raw)
		out := info(identity.ID{})
		out.stranger, out.rules = s, t.rules
		return s, out, nil
	}
	return t.known(conn, raw, auth)
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, explain(err)
	}
	conn, auth, err = t.known(conn, raw, auth)
	if err != nil {
		return nil, nil, err
	}
	conn, err = accepted(ctx, conn)
	return conn, auth, err
}

// Clone implements credentials.TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials {
	c := *t
	c.TransportCredentials = t.TransportCredentials.Clone()
	return &c
}

// known returns a connection with the identity that its handshake has verified.
func (t *transport) known(conn, raw net.Conn, auth credentials.AuthInfo) (net.Conn, credentials.AuthInfo, error) {
	state := auth.(credentials.TLSInfo).State
	id, err := idOf(state)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	conn, err = t.source.track(conn, raw, id, state)
	if err != nil {
		return nil, nil, err
	}
	return conn, info(id), nil
}

func info(id identity.ID) Info {
	return Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, ID: id}
}

// idOf returns the identity of a peer that verify has accepted.
func idOf(cs tls.ConnectionState) (identity.ID, error) {
	return identity.Parse(cs.PeerCertificates[0].URIs[0].String())
}

// accepted waits until the server has accepted the certificate of this client. With TLS 1.3 a
// client's handshake ends earlier. A client that writes before it reads could lose the alert
// that says why it is refused. accepted costs no time: a gRPC server sends its settings at
// once, and a client waits for them before its first call.
func accepted(ctx context.Context, conn net.Conn) (net.Conn, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		conn.Close()
		return nil, explain(err)
	}
	return &begun{Conn: conn, first: first}, nil
}

// begun is a connection whose first byte was read already.
type begun struct {
	net.Conn
	// first is empty after the first Read. Only one goroutine reads.
	first []byte
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 && len(p) > 0 {
		n := copy(p, b.first)
		b.first = nil
		return n, nil
	}
	return b.Conn.Read(p)
}

// explain adds the meaning of a TLS alert that the peer sent.
func explain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return fmt.Errorf("%w (%w)", ErrRefused, err)
	}
	return err
}
