package recorder

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// RequestHeader has the id of a request, which the client chooses.
const RequestHeader = "nusa-request"

// maxRequest bounds the id of a request, in bytes.
const maxRequest = 64

// Of returns who makes the call of a context. It returns the zero value outside of calls.
func Of(ctx context.Context) audit.Call {
	method, ok := grpc.Method(ctx)
	if !ok {
		return audit.Call{}
	}
	out := audit.Call{From: fromOf(ctx), Method: strings.TrimPrefix(method, "/nusa.v1."), Request: requestOf(ctx)}
	if call := rights.Of(ctx); call != nil {
		out.Who = call.Who.Name
	} else if id, ok := trust.CallerOf(ctx); ok {
		out.Who = Name(id)
	}
	return out
}

// Name returns the name of a member in the trail, such as "operator/jane".
func Name(id identity.ID) string {
	return strings.TrimPrefix(id.String(), "spiffe://"+id.Federation+"/")
}

// fromOf returns the address of the caller. A server that forwards a call names the caller's
// address in a header. Only the header of a server is believed. Without identities no caller can
// be believed, and the header is used as well.
func fromOf(ctx context.Context) string {
	p, _ := trust.PeerOf(ctx)
	if text := metadata.ValueFromIncomingContext(ctx, trust.FromHeader); len(text) == 1 && text[0] != "" {
		if !trust.Encrypted(ctx) || p.Kind == identity.Global || p.Kind == identity.Server {
			return text[0]
		}
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

func requestOf(ctx context.Context) string {
	if text := metadata.ValueFromIncomingContext(ctx, RequestHeader); len(text) == 1 && text[0] != "" && len(text[0]) <= maxRequest {
		return text[0]
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
