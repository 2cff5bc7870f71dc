package recorder

import (
	"net"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestFrom: only servers may name the address of the caller, and everybody without encryption.
func TestFrom(t *testing.T) {
	for name, c := range map[string]struct {
		peer peer.Peer
		want string
	}{
		"not encrypted":             {peer.Peer{}, "forged"},
		"a server":                  {peer.Peer{AuthInfo: trust.Info{ID: identity.ID{Federation: "f", Kind: identity.Server, Region: "a", Name: "s1"}}}, "forged"},
		"a global server":           {peer.Peer{AuthInfo: trust.Info{ID: identity.ID{Federation: "f", Kind: identity.Global, Name: "g1"}}}, "forged"},
		"an agent":                  {peer.Peer{AuthInfo: trust.Info{ID: identity.ID{Federation: "f", Kind: identity.Agent, Region: "a", Name: "n1"}}}, "192.0.2.1:5"},
		"TLS without a certificate": {peer.Peer{AuthInfo: trust.Info{}}, "192.0.2.1:5"},
	} {
		c.peer.Addr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5}
		ctx := metadata.NewIncomingContext(peer.NewContext(t.Context(), &c.peer), metadata.Pairs(trust.FromHeader, "forged"))
		if got := fromOf(ctx); got != c.want {
			t.Errorf("%s: from %q, want %q", name, got, c.want)
		}
	}
}
