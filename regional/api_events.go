package regional

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxToken is the longest token of an event.
const maxToken = 256

// events tells what happened in the region while its present master is in
// office: its own jobs and its nodes.
type events struct {
	nusav1.UnimplementedEventsServer
	s *server
}

// Watch sends events from a token on, or from now.
func (e events) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	l, err := e.s.leading()
	if err != nil {
		return err
	}
	if len(req.GetToken()) > maxToken {
		return serve.Invalid(&nusav1.Problem{Field: "token", Message: "is none of ours"})
	}
	for next := l.events.After(req.GetToken()); ; {
		list, after, changed := l.events.From(next)
		for _, ev := range list {
			if err := stream.Send(ev); err != nil {
				return err
			}
		}
		next = after
		select {
		case <-stream.Context().Done():
			return nil
		case <-e.s.stopping:
			return status.Error(codes.Unavailable, "this server stops")
		case <-l.ctx.Done():
			return errNoMaster
		case <-changed:
		}
	}
}
