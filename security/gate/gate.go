package gate

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Options configure a Gate.
type Options struct {
	// Source is the identity of the server. Without one the gate is open.
	Source *trust.Source
	// Rights returns who may do what. It returns nil while this server does not know, for example
	// because it is not the active one.
	Rights func() *rights.Set
	// Now returns the time. Default: time.Now.
	Now func() time.Time
	// Record takes the entry of a denial for the audit trail. It must not block. It may be nil.
	Record func(audit.Entry)
}

// Gate decides which calls a gRPC server accepts. The interceptors of admission come before those
// that forward calls to another server, and the interceptors of decision after them. So the server
// that serves a call decides it.
type Gate struct {
	o      Options
	denied *prometheus.CounterVec
}

// New returns a gate.
func New(o Options) *Gate {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Gate{o: o, denied: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nusa_auth_denied_total", Help: "Denied calls, by verb and kind of object.",
	}, []string{"verb", "kind"})}
}

// Register registers the metrics of the gate.
func (g *Gate) Register(r prometheus.Registerer) error {
	if g.o.Source == nil {
		return nil
	}
	return errors.Join(r.Register(g.denied), r.Register(g.o.Source))
}

// deny counts and records a denial.
func (g *Gate) deny(ctx context.Context, who string, a authz.Action, why string) {
	g.denied.WithLabelValues(a.Verb, a.Kind).Inc()
	g.record(ctx, who, a, why)
}

// refuse counts and records a call that admission refuses.
func (g *Gate) refuse(ctx context.Context, err error) {
	g.deny(ctx, "", authz.Action{Verb: "call", Kind: "method"}, status.Convert(err).Message())
}

// record records a denial. who is the caller, if it is not the member that calls. The denials of
// callers without a certificate are not recorded, because everybody can cause them.
func (g *Gate) record(ctx context.Context, who string, a authz.Action, why string) {
	if _, known := trust.CallerOf(ctx); !known || g.o.Record == nil {
		return
	}
	e := audit.Entry{
		Verb: a.Verb, Kind: a.Kind, Namespace: a.Namespace, Name: a.Name, Region: a.Region, Outcome: audit.Denied, Reason: why,
	}.By(recorder.Of(ctx))
	if who != "" {
		e.Who = who
	}
	g.o.Record(e)
}

// Around returns the interceptors for unary calls: admission, those between, and decision.
func (g *Gate) Around(between ...grpc.UnaryServerInterceptor) []grpc.UnaryServerInterceptor {
	if g.o.Source == nil {
		return between
	}
	return append(append([]grpc.UnaryServerInterceptor{g.admitUnary}, between...), g.decideUnary)
}

// AroundStreams is Around for streams.
func (g *Gate) AroundStreams(between ...grpc.StreamServerInterceptor) []grpc.StreamServerInterceptor {
	if g.o.Source == nil {
		return between
	}
	return append(append([]grpc.StreamServerInterceptor{g.admitStream}, between...), g.decideStream)
}

func (g *Gate) admitUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	admitted, err := admit(ctx, g.o.Source.ID(), info.FullMethod)
	if err != nil {
		g.refuse(ctx, err)
		return nil, err
	}
	ctx = admitted
	return handler(ctx, req)
}

func (g *Gate) admitStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := admit(stream.Context(), g.o.Source.ID(), info.FullMethod)
	if err != nil {
		g.refuse(stream.Context(), err)
		return err
	}
	if ctx != stream.Context() {
		stream = forwardedStream{stream, ctx}
	}
	return handler(srv, stream)
}

// forwardedStream is a stream whose caller is not the peer.
type forwardedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (f forwardedStream) Context() context.Context { return f.ctx }

// admit returns the context of a call that the server accepts. CallerOf returns the caller in
// that context.
func admit(ctx context.Context, server identity.ID, method string) (context.Context, error) {
	peer, ok := trust.PeerOf(ctx)
	switch {
	case ok:
	case !trust.Encrypted(ctx):
		return nil, status.Error(codes.Unauthenticated, "the connection is not encrypted: give the program an identity (--identity)")
	case forStrangers(method):
		return withAddress(ctx), nil
	default:
		return nil, status.Errorf(codes.Unauthenticated, "%s needs a certificate: give the program an identity (--identity), or let it join with a token", method)
	}
	caller := peer
	if text := metadata.ValueFromIncomingContext(ctx, trust.CallerHeader); len(text) > 0 && forwards(server, peer) {
		var err error
		caller, err = identity.Parse(text[0])
		if err != nil || !caller.Kind.Leaf() {
			return nil, status.Errorf(codes.Unauthenticated, "%s forwards a call of %q: %v", peer.Describe(), text[0], err)
		}
		ctx = trust.WithCaller(ctx, caller)
	}
	if forStrangers(method) && !forwards(server, peer) {
		ctx = withAddress(ctx)
	}
	if err := Allow(server, method, caller); err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	return ctx, nil
}

// withAddress returns a context whose metadata has the address of the peer, for a server that
// this one may forward the call to. It replaces an address that the peer has sent.
func withAddress(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx
	}
	md = md.Copy()
	md.Set(trust.AddressHeader, trust.HostOf(p.Addr).String())
	return metadata.NewIncomingContext(ctx, md)
}
