package trust

import (
	"context"
	"net"
	"net/netip"

	"google.golang.org/grpc/peer"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// CallerHeader has the identity of the caller of a call that another server forwards.
// Package gate removes the header unless that server may forward calls.
const CallerHeader = "nusa-caller"

// FromHeader has the address of the caller of a call that another server forwards.
const FromHeader = "nusa-from"

type callerKey struct{}

type localKey struct{}

// LocalHeader marks a call of the administrator of a server's machine that this server forwards.
// Package gate believes it like CallerHeader.
const LocalHeader = "nusa-local"

// root returns the identity of the administrator of a server's machine.
func root(server identity.ID) identity.ID {
	return identity.ID{Federation: server.Federation, Kind: identity.Operator, Name: "root"}
}

// MayBeLocal reports whether an ID is that of the administrator of a server's machine.
func MayBeLocal(id identity.ID) bool { return id == root(id) }

// WithLocal returns the context of a call that the administrator of another server's machine makes.
func WithLocal(ctx context.Context) context.Context { return context.WithValue(ctx, localKey{}, true) }

// IsLocal reports whether the administrator of a server's machine makes a call, by its Unix socket.
// CallerOf returns operator/root then. A certificate with that name is not enough.
func IsLocal(ctx context.Context) bool {
	if forwarded, _ := ctx.Value(localKey{}).(bool); forwarded {
		return true
	}
	if ctx.Value(callerKey{}) != nil {
		return false // the peer forwards a call of another caller
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	info, ok := p.AuthInfo.(Info)
	return ok && info.local
}

// NoCaller is the value of CallerHeader for a caller who has shown no certificate.
const NoCaller = "none"

// WithCaller returns a context in which CallerOf returns the ID. The zero ID stands for a caller who
// has shown no certificate.
func WithCaller(ctx context.Context, id identity.ID) context.Context {
	return context.WithValue(ctx, callerKey{}, id)
}

// CallerOf returns the identity that makes a call: the peer, or the member for which the peer
// forwards the call. It returns false if the connection is not encrypted, and if the caller has shown
// no certificate.
func CallerOf(ctx context.Context) (identity.ID, bool) {
	if id, ok := ctx.Value(callerKey{}).(identity.ID); ok {
		return id, id.Kind != identity.None
	}
	return PeerOf(ctx)
}

// IsStranger reports whether a context says that the caller has shown no certificate.
func IsStranger(ctx context.Context) bool {
	id, ok := ctx.Value(callerKey{}).(identity.ID)
	return ok && id.Kind == identity.None
}

// AddressHeader has the address of the caller of a call that another server of the region
// forwards. Package gate sets the header for calls of service Identity.
const AddressHeader = "nusa-address"

// HostOf returns the IP address of a network address, and the zero address if there is none.
func HostOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	pair, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return pair.Addr().Unmap().WithZone("")
}
