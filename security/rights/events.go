package rights

import (
	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// readable is a stream of events without those that the caller may not read.
type readable struct {
	grpc.ServerStreamingServer[nusav1.Event]
	call *Call
}

// Readable returns a stream that sends only the events that the caller may read. An event about an object
// of no namespace needs the right to read the events of all namespaces. A reset and a gap say nothing about
// an object, so everybody gets them.
func Readable(stream grpc.ServerStreamingServer[nusav1.Event]) grpc.ServerStreamingServer[nusav1.Event] {
	call := Of(stream.Context())
	if !call.Filtered() {
		return stream
	}
	return &readable{ServerStreamingServer: stream, call: call}
}

// Send implements grpc.ServerStreamingServer.
func (r *readable) Send(event *nusav1.Event) error {
	everybody := event.GetReset_() || event.GetType() == "instance.gap"
	if !everybody && !r.call.May(event.GetNamespace(), event.GetRegion()) {
		return nil
	}
	return r.ServerStreamingServer.Send(event)
}
