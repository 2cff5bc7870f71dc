package trust

import (
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// webMembers may show a certificate on an HTTPS connection.
var webMembers = identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}, {Kind: identity.Agent}, {Kind: identity.Operator}}

// Inside returns the server's end of a connection within this process that stands for an HTTP
// connection. A server with credentials gives it the identity of the HTTPS client's certificate,
// without another handshake. state is nil for HTTP without encryption. Only this function makes
// such a connection, so nothing that a client sends can name an identity. A server with credentials calls
// accepted with what handlers see of the client, or refused if the certificate is refused. When the
// certificate is not accepted any more, the server closes raw.
func Inside(raw net.Conn, state *tls.ConnectionState, accepted func(credentials.AuthInfo), refused func(error)) net.Conn {
	return &inside{Conn: raw, state: state, accepted: accepted, refused: refused}
}

type inside struct {
	net.Conn
	state    *tls.ConnectionState
	accepted func(credentials.AuthInfo)
	refused  func(error)
}

// inside returns a connection of Inside with the identity of its client. The certificate is verified
// again, because the HTTPS connection may be older than a change of the roots or a ban. As with any
// other connection, a later ban ends the connection.
func (t *transport) inside(c *inside) (net.Conn, credentials.AuthInfo, error) {
	if c.state == nil || len(c.state.PeerCertificates) == 0 {
		who := info(identity.ID{})
		c.accepted(who)
		return c, who, nil
	}
	if !c.state.HandshakeComplete {
		return nil, nil, errors.New("the handshake of the HTTPS connection is not complete")
	}
	if _, err := t.source.verify(*c.state, webMembers); err != nil {
		t.source.refuse(c.RemoteAddr(), err)
		c.refused(err)
		return nil, nil, err
	}
	conn, who, err := t.known(c, c, credentials.TLSInfo{State: *c.state})
	if err != nil {
		return nil, nil, err
	}
	c.accepted(who)
	return conn, who, nil
}
