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
	// Limits bound the calls of each operator and access token.
	Limits Limits
	// Record takes the entry of a denial for the audit trail. It must not block. It may be nil.
	Record func(audit.Entry)
}

// Gate decides which calls a gRPC server accepts. The interceptors of admission come before those
// that forward calls to another server, and the interceptors of decision after them. So the server
// that serves a call decides it.
type Gate struct {
	o       Options
	denied  *prometheus.CounterVec
	lasting lasting
	limiter limiter
}

// New returns a gate.
func New(o Options) *Gate {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Gate{o: o, limiter: limiter{limits: o.Limits}, denied: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nusa_auth_denied_total", Help: "Denied calls, by verb and kind of object.",
	}, []string{"verb", "kind"})}
}

// Register registers the metrics of the gate.
func (g *Gate) Register(r prometheus.Registerer) error {
	if g.o.Source == nil {
		return nil
	}
	return errors.Join(r.Register(g.denied), r.Register(refused{g.o.Source}))
}

// refused collects the number of peers that a source refused.
type refused struct{ *trust.Source }

var refusedDesc = prometheus.NewDesc("nusa_refused_connections_total", "Connections whose peer was refused in the handshake.", []string{"reason"}, nil)

// Describe implements prometheus.Collector.
func (refused) Describe(out chan<- *prometheus.Desc) { out <- refusedDesc }

// Collect implements prometheus.Collector.
func (r refused) Collect(out chan<- prometheus.Metric) {
	for why, n := range r.Refused() {
		out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(n), why)
	}
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
// callers without a certificate and a valid access token are not recorded, because everybody can cause
// them.
func (g *Gate) record(ctx context.Context, who string, a authz.Action, why string) {
	if _, known := trust.CallerOf(ctx); !known && who == "" || g.o.Record == nil {
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
		g.refuse(admitted, err)
		return nil, err
	}
	resp, err := handler(admitted, req)
	if err == nil {
		vouch(admitted)
	}
	return resp, err
}

func (g *Gate) admitStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := admit(stream.Context(), g.o.Source.ID(), info.FullMethod)
	if err != nil {
		g.refuse(ctx, err)
		return err
	}
	if ctx != stream.Context() {
		stream = admittedStream{stream, ctx}
	}
	return handler(srv, stream)
}

// admittedStream is a stream whose caller is not the peer, or has shown no certificate.
type admittedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s admittedStream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream.
func (s admittedStream) SendMsg(m any) error {
	vouch(s.ctx)
	return s.ServerStream.SendMsg(m)
}

// vouch lets a connection without a certificate continue after an access token was accepted, by this
// server or by the one that it has forwarded the call to.
func vouch(ctx context.Context) {
	if trust.IsStranger(ctx) && tokenOf(ctx) != "" {
		trust.Vouch(ctx)
	}
}

// admit returns the context of a call that the server accepts. CallerOf returns the caller in
// that context. With an error the context is for the entry of the denial.
func admit(ctx context.Context, server identity.ID, method string) (context.Context, error) {
	peer, ok := trust.PeerOf(ctx)
	switch {
	case ok:
	case !trust.Encrypted(ctx):
		return ctx, status.Error(codes.Unauthenticated, "the connection is not encrypted: give the program an identity (--identity)")
	case tokenOf(ctx) != "" && !trust.Accepts(ctx, anyOperator(server)):
		return ctx, status.Error(codes.PermissionDenied, "this listener is not for operators: use the address of --api-addr of the server")
	default:
		return admitStranger(withAddress(ctx), server, method)
	}
	caller := peer
	if text := metadata.ValueFromIncomingContext(ctx, trust.CallerHeader); len(text) > 0 && forwards(server, peer) {
		if text[0] == trust.NoCaller {
			return admitStranger(ctx, server, method)
		}
		var err error
		caller, err = identity.Parse(text[0])
		if err != nil || !caller.Kind.Leaf() {
			return ctx, status.Errorf(codes.Unauthenticated, "%s forwards a call of %q: %v", peer.Describe(), text[0], err)
		}
		ctx = trust.WithCaller(ctx, caller)
		// A server of an earlier version passes on any header of its caller.
		if len(metadata.ValueFromIncomingContext(ctx, trust.LocalHeader)) > 0 && trust.MayBeLocal(caller) {
			ctx = trust.WithLocal(ctx)
		}
	}
	if forStrangers(method) && !forwards(server, peer) {
		ctx = withAddress(ctx)
	}
	if err := Allow(server, method, caller); err != nil {
		return ctx, status.Error(codes.PermissionDenied, err.Error())
	}
	return ctx, nil
}

// admitStranger returns the context of a call without a certificate. With an access token
// the methods of operators are open. Whether the token is valid is decided later.
func admitStranger(ctx context.Context, server identity.ID, method string) (context.Context, error) {
	if joins(method) {
		return ctx, nil // an older server that gets the forwarded call does not know NoCaller
	}
	ctx = trust.WithCaller(ctx, identity.ID{})
	switch r := rowOf(method); {
	case forStrangers(method):
	case tokenOf(ctx) == "":
		return ctx, status.Errorf(codes.Unauthenticated, "%s needs a certificate or an access token: give the program an identity (--identity), log in (`nusa login`), or let the program join with a token; over HTTP, send \"Authorization: Bearer TOKEN\"", method)
	case r == nil || r.may(server).Check(anyOperator(server)) != nil:
		return ctx, status.Errorf(codes.PermissionDenied, "%s may not be called with an access token", method)
	}
	return ctx, nil
}

// anyOperator stands for the caller who has an access token.
func anyOperator(server identity.ID) identity.ID {
	return identity.ID{Federation: server.Federation, Kind: identity.Operator, Name: "any"}
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
