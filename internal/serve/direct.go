package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/grpcdial"
)

// direct calls the unary methods of this server without a connection, as the gRPC server would: with the
// same interceptors, bounds, peer, metadata and codec. HTTP clients make about twice as many empty calls this way.
type direct struct {
	methods map[string]method // by full name
	unary   grpc.UnaryServerInterceptor
	tap     tap.ServerInHandle
	codec   encoding.CodecV2
}

// method is a unary method of a registered service.
type method struct {
	impl    any
	handler grpc.MethodHandler
}

func newDirect(o Options, unary []grpc.UnaryServerInterceptor) *direct {
	d := &direct{methods: map[string]method{}, unary: chain(unary), tap: o.Tap, codec: o.Codec}
	if d.codec == nil {
		d.codec = encoding.GetCodecV2("proto")
	}
	return d
}

// chain returns an interceptor that calls several in order. grpc.ChainUnaryInterceptor does that only for a
// gRPC server.
func chain(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for i := len(all) - 1; i >= 0; i-- {
			outer, next := all[i], handler
			handler = func(ctx context.Context, req any) (any, error) { return outer(ctx, req, info, next) }
		}
		return handler(ctx, req)
	}
}

// RegisterService registers a service for gRPC, and for the calls of HTTP clients. It implements
// grpc.ServiceRegistrar. A service that is registered on GRPC alone serves HTTP clients, too, but slower.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.GRPC.RegisterService(desc, impl)
	for _, m := range desc.Methods {
		s.inside.direct.methods["/"+desc.ServiceName+"/"+m.MethodName] = method{impl, m.Handler}
	}
}

// caller is the client of an HTTP connection whose certificate, if any, is accepted now.
type caller struct {
	of   *insideConn
	peer peer.Peer
	// ended ends when the certificate is not accepted any more, or with the HTTP connection.
	ended context.Context
}

// call calls a method for a caller. opts may ask for headers and trailers; other options do not matter
// without a connection.
func (d *direct) call(ctx context.Context, who *caller, name string, m method, args, reply any, opts []grpc.CallOption) error {
	// The request is encoded, so that a field that no connection would carry, such as text that is not
	// UTF-8, is refused, and so that the handler may keep or change its request.
	sent, err := d.codec.Marshal(args)
	if err != nil {
		return status.Errorf(codes.Internal, "encode the request: %v", err)
	}
	defer sent.Free()
	if sent.Len() > maxReceive {
		return status.Errorf(codes.ResourceExhausted, "the request has %d bytes, more than %d", sent.Len(), maxReceive)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(who.ended, cancel)()
	given, _ := metadata.FromOutgoingContext(ctx)
	stream := &callStream{method: name}
	ctx = metadata.NewOutgoingContext(ctx, metadata.MD{}) // calls of the handler do not have the caller's token
	ctx = grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(ctx, given), stream)
	p := who.peer
	ctx = peer.NewContext(ctx, &p)
	if d.tap != nil {
		ctx, err = d.tap(ctx, &tap.Info{FullMethodName: name, Header: given})
		if err != nil {
			return asStatus(err)
		}
	}
	out, err := m.handler(m.impl, ctx, func(v any) error {
		if err := d.codec.Unmarshal(sent, v); err != nil {
			return status.Errorf(codes.Internal, "decode the request: %v", err)
		}
		return nil
	}, d.unary)
	stream.tell(opts)
	if err != nil {
		return asStatus(err)
	}
	return d.answer(reply, out)
}

// asStatus converts the error of a handler as a gRPC server does.
func asStatus(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.FromContextError(err).Err()
}

// answer copies the response of a handler, which may share it with others.
func (d *direct) answer(reply, out any) error {
	to, ok := reply.(proto.Message)
	from, ok2 := out.(proto.Message)
	if ok && ok2 && to.ProtoReflect().Type() == from.ProtoReflect().Type() {
		if size := proto.Size(from); size > grpcdial.MaxReply {
			return status.Errorf(codes.ResourceExhausted, "the response has %d bytes, more than %d", size, grpcdial.MaxReply)
		}
		proto.Reset(to)
		proto.Merge(to, from)
		return nil
	}
	data, err := d.codec.Marshal(out)
	if err != nil {
		return status.Errorf(codes.Internal, "encode the response: %v", err)
	}
	defer data.Free()
	if err := d.codec.Unmarshal(data, reply); err != nil {
		return status.Errorf(codes.Internal, "decode the response: %v", err)
	}
	return nil
}

// callStream takes the headers and trailers that a handler sets.
type callStream struct {
	method          string
	mu              sync.Mutex // a handler may have several goroutines
	header, trailer metadata.MD
}

// Method implements grpc.ServerTransportStream.
func (s *callStream) Method() string { return s.method }

// SetHeader implements grpc.ServerTransportStream.
func (s *callStream) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header = metadata.Join(s.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream.
func (s *callStream) SendHeader(md metadata.MD) error { return s.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (s *callStream) SetTrailer(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}

// tell gives the headers and trailers to the options that ask for them.
func (s *callStream) tell(opts []grpc.CallOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = s.header
		case grpc.TrailerCallOption:
			*o.TrailerAddr = s.trailer
		}
	}
}

// accepted notes that the client's certificate, if any, is accepted. From then on unary calls need no
// connection.
func (c *insideConn) accepted(info credentials.AuthInfo) {
	l := c.link
	ended, end := context.WithCancel(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || c.closed { // the server may have closed the connection because of a ban
		end()
		return
	}
	l.end()
	l.caller = &caller{of: c, peer: peer.Peer{Addr: l.http.RemoteAddr(), AuthInfo: info}, ended: ended}
	l.endCaller = end
}

// end forgets the caller: the next call verifies the certificate again. The lock is held.
func (l *link) end() {
	if l.endCaller != nil {
		l.endCaller()
	}
	l.caller, l.endCaller = nil, nil
}

// knows returns the caller and the method for a direct call, or false.
func (l *link) knows(name string) (*caller, method, bool) {
	m, ok := l.of.direct.methods[name]
	if !ok {
		return nil, method{}, false
	}
	select {
	case <-l.of.done: // the server stops
		return nil, method{}, false
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.caller, m, l.caller != nil
}
