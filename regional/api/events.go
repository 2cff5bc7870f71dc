package api

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// instanceEvents is the prefix of the types of events about instances.
const instanceEvents = "instance."

// events is the Events service. It sends the events of the present term about the region's
// own jobs, its instances and its nodes.
type events struct {
	nusav1.UnimplementedEventsServer
	s *Server
}

// Watch sends the events after a token. Without a token it sends the events from now on.
func (e events) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	m, err := e.s.master()
	if err != nil {
		return err
	}
	if !eventlog.IsToken(req.GetToken()) {
		return rpcerr.Invalid(&nusav1.Problem{Field: "token", Message: fmt.Sprintf("%.40q is not a token: use the token of an event", req.GetToken())})
	}
	if own := e.s.region(); req.GetRegion() != "" && req.GetRegion() != own {
		return rpcerr.Invalid(&nusav1.Problem{Field: "region", Message: "this is region " + own + "; ask a global server for others"})
	}
	next, missing := m.Events.Start(req.GetToken(), req.GetSince().AsDuration())
	if missing != nil {
		if err := stream.Send(missing); err != nil {
			return err
		}
	}
	for {
		list, after, changed := m.Events.From(next)
		for _, event := range list {
			if !req.GetInstances() && strings.HasPrefix(event.GetType(), instanceEvents) {
				continue
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		}
		next = after
		select {
		case <-stream.Context().Done():
			return nil
		case <-e.s.Stopping:
			return errStopping
		case <-m.Done:
			return raftlog.ErrNoMaster
		case <-changed:
		}
	}
}
