package submits

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Jobs is a Jobs service that takes submits encoded.
type Jobs interface {
	nusav1.JobsServer
	// SubmitEncoded does what Submit does, for a request that is still encoded.
	SubmitEncoded(context.Context, *Request) (*nusav1.SubmitResponse, error)
	// SubmitManyEncoded does what SubmitMany does, for requests that are still encoded.
	SubmitManyEncoded(grpc.BidiStreamingServer[Request, nusav1.SubmitManyResponse]) error
}

// Register registers a Jobs service. Interceptors see a Request, too.
func Register(to grpc.ServiceRegistrar, jobs Jobs) {
	d := nusav1.Jobs_ServiceDesc
	d.Methods, d.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
	for i := range d.Methods {
		if d.Methods[i].MethodName == "Submit" {
			d.Methods[i].Handler = SubmitHandler
		}
	}
	for i := range d.Streams {
		if d.Streams[i].StreamName == "SubmitMany" {
			d.Streams[i].Handler = submitMany
		}
	}
	to.RegisterService(&d, jobs)
}

// SubmitHandler is the handler of Submit for a Jobs service.
func SubmitHandler(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	req := new(Request)
	if err := decode(req); err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, req any) (any, error) {
		return srv.(Jobs).SubmitEncoded(ctx, req.(*Request))
	}
	if interceptor == nil {
		return handle(ctx, req)
	}
	return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: nusav1.Jobs_Submit_FullMethodName}, handle)
}

func submitMany(srv any, stream grpc.ServerStream) error {
	return srv.(Jobs).SubmitManyEncoded(&grpc.GenericServerStream[Request, nusav1.SubmitManyResponse]{ServerStream: stream})
}
