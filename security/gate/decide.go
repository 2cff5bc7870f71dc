package gate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TokenHeader has the access token of a call, after "Bearer ".
const TokenHeader = "authorization"

// errUndecided is the error of a call that this server cannot decide now.
var errUndecided = status.Error(codes.Unavailable, "this server does not know yet who may do what: call again, or another server")

// errUnchecked is the error of a handler that answers without a decision about the object.
var errUnchecked = status.Error(codes.Internal, "the server did not decide whether the caller may do this: please report this error")

func (g *Gate) decideUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	r := rowOf(info.FullMethod)
	call, err := g.call(ctx, r)
	if err != nil {
		return nil, err
	}
	if call == nil {
		return handler(ctx, req)
	}
	if err := decide(call, r, req); err != nil {
		return nil, err
	}
	resp, err := handler(rights.With(ctx, call), req)
	if err == nil && !call.Checked() {
		return nil, errUnchecked
	}
	return resp, err
}

func (g *Gate) decideStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r := rowOf(info.FullMethod)
	call, err := g.call(stream.Context(), r)
	if err != nil {
		return err
	}
	if call == nil {
		return handler(srv, stream)
	}
	// The handler of such a stream decides each message.
	call.Lasts = info.FullMethod != nusav1.Jobs_SubmitMany_FullMethodName
	ctx, end := context.WithCancelCause(rights.With(stream.Context(), call))
	defer end(nil)
	caller, _ := trust.CallerOf(ctx)
	d := &decidedStream{ServerStream: stream, ctx: ctx, end: end, call: call, row: r, caller: caller.Name, token: tokenOf(ctx)}
	defer g.add(d)()
	err = handler(srv, d)
	if ended := d.ended(); ended != nil {
		return ended
	}
	return err
}

// decidedStream is a stream whose first request is decided.
type decidedStream struct {
	grpc.ServerStream
	ctx context.Context
	// end ends the context, with the error of the stream.
	end  context.CancelCauseFunc
	call *rights.Call
	row  *row
	// caller and token are the credential.
	caller, token string
	// begun: the first request was decided.
	begun atomic.Bool
}

// Context implements grpc.ServerStream.
func (d *decidedStream) Context() context.Context { return d.ctx }

// RecvMsg implements grpc.ServerStream.
func (d *decidedStream) RecvMsg(m any) error {
	err := d.ServerStream.RecvMsg(m)
	if ended := d.ended(); ended != nil {
		return ended
	}
	if err != nil || d.begun.Swap(true) {
		return err
	}
	return decide(d.call, d.row, m)
}

// SendMsg implements grpc.ServerStream.
func (d *decidedStream) SendMsg(m any) error {
	if answer, ok := m.(*nusav1.SubmitManyResponse); !d.call.Checked() && (!ok || answer.GetCode() == 0) {
		return errUnchecked // the error of a submit that was not decided yet shows nothing
	}
	if ended := d.ended(); ended != nil {
		return ended
	}
	return d.ServerStream.SendMsg(m)
}

// call returns the call of an operator or a token. It returns nil for calls of other members, for
// which the table of callers is all.
func (g *Gate) call(ctx context.Context, r *row) (*rights.Call, error) {
	server := g.o.Source.ID()
	caller, known := trust.CallerOf(ctx)
	token := tokenOf(ctx)
	machine := known && caller.Kind != identity.Operator
	if machine && (token == "" || caller.Kind != identity.Global) {
		return nil, nil
	}
	if !known && token == "" { // without a certificate: admission has let only such methods through
		if r.verb != "" {
			return nil, status.Error(codes.Unauthenticated, "this call needs a certificate or an access token")
		}
		return nil, nil
	}
	set := g.o.Rights()
	if set == nil && r.verb == "" && token == "" {
		return nil, nil // for example System.Info of a standby
	}
	if set == nil {
		return nil, errUndecided
	}
	call := &rights.Call{Set: set, Verb: r.verb, Kind: r.kind, Region: server.Region}
	call.Denied = func(a authz.Action, why string) { g.deny(ctx, call.Who.Name, a, why) }
	var err error
	call.Who, call.Token, err = g.principal(ctx, set, caller.Name, token)
	if err != nil {
		g.deny(ctx, "", authz.Action{Verb: "use", Kind: "token"}, err.Error())
		if errors.Is(err, rights.ErrUnknown) && server.Region != "" {
			err = fmt.Errorf("%w, or this region has not got it yet (`nusa region list` shows the age of its policy)", err)
		}
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if token != "" {
		trust.Vouch(ctx)
	}
	return call, g.limit(call)
}

// principal returns who has a credential: the Unix socket, an access token, or else the certificate of an operator.
func (g *Gate) principal(ctx context.Context, set *rights.Set, operator, token string) (authz.Principal, *nusav1.AccessToken, error) {
	switch {
	case trust.IsLocal(ctx): // may do everything, whatever the roles say
		return set.Root(), nil, nil
	case token == "":
		return set.Operator(operator), nil, nil
	}
	return set.Token(token, g.o.Now())
}

// limit returns an error if the principal makes too many calls.
func (g *Gate) limit(call *rights.Call) error {
	if g.o.Limits == (Limits{}) {
		return nil
	}
	r := g.limiter.of(call.Who.Name)
	if r.submits != nil {
		call.SubmitLimit = func() time.Duration { return wait(r.submits, g.o.Now()) }
	}
	return rights.TooMany(call.Who, "calls", wait(r.calls, g.o.Now()))
}

// tokenOf returns the access token of a call, or nothing.
func tokenOf(ctx context.Context) string {
	values := metadata.ValueFromIncomingContext(ctx, TokenHeader)
	if len(values) == 0 {
		return ""
	}
	return strings.TrimPrefix(values[0], "Bearer ")
}

// decide decides a call with its request, as far as the request names the object.
func decide(call *rights.Call, r *row, req any) error {
	if r.verb == "" {
		call.All = true
		call.Filtered()
		return nil
	}
	at, known := r.at(req)
	own := r.kind == "node" && call.Region != "" // a regional server has nodes of its own region only
	if (known || own) && call.Holds(at.namespace, at.region, at.name) && (!ownOnly(call, r) || call.Holds(at.namespace, "", at.name)) {
		call.All = true
		return nil
	}
	open := authz.Action{Verb: r.verb, Kind: r.kind}
	if known {
		open.Namespace = at.namespace
		if call.Region == "" { // a regional server finds the objects of its own region, too
			open.Region = at.region
		}
	}
	if call.Region != "" && r.kind == "event" { // it has the events of its own region only
		open.Region = call.Region
	}
	other := authz.Action{Verb: r.verb, Kind: r.or}
	if (r.list || !known) && !own && (call.Set.Somewhere(call.Who, open) || r.or != "" && call.Set.Somewhere(call.Who, other)) {
		call.Undecided()
		return nil
	}
	region := at.region
	if region == "" || ownOnly(call, r) && call.May(at.namespace, region) {
		region = call.Region
	}
	return call.Refuse(authz.Action{Verb: r.verb, Kind: r.kind, Namespace: at.namespace, Region: region, Name: at.name})
}

// ownOnly reports whether the server has such objects of its own region only, whatever region the
// request names.
func ownOnly(call *rights.Call, r *row) bool {
	return call.Region != "" && (r.kind == "job" || r.kind == "allocation" || r.kind == "node")
}
