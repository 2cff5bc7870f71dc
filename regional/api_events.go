package regional

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// events tells what happened in the region while its present master is in
// office: its own jobs and its nodes.
type events struct {
	nusav1.UnimplementedEventsServer
	s *server
}

// told notes what an agent told of an allocation.
func (l *leader) told(a state.ReportedChange) {
	kind := a.State.String()
	switch {
	case a.Declined:
		kind = "declined"
	case a.State == state.Running && a.Restarts > 0:
		kind = "restarted"
	case !a.State.Terminal() && a.State != state.Running:
		return // it is about to
	}
	l.events.Add(instanceEvent+kind, a.Key().JobKey().In(l.s.cfg.Region.GetName()), "%s", toldOf{a})
}

// instanceEvent begins the types of events about instances.
const instanceEvent = "instance."

// toldOf is put into words when an event is read: most are never.
type toldOf struct{ state.ReportedChange }

func (t toldOf) String() string {
	out := fmt.Sprintf("%s[%d] on %s, allocation %.8s, version %d", t.Group, t.Index, t.NodeName, t.ID, t.JobVersion)
	switch {
	case t.NewRestarts > 1:
		out += fmt.Sprintf(", restarts %d to %d", t.Restarts-t.NewRestarts+1, t.Restarts)
	case t.Restarts > 0:
		out += fmt.Sprintf(", restart %d", t.Restarts)
	}
	if said := reason.WithMessage(wire.ReasonToProto(t.Reason), t.Message); said != "" && (t.State.Terminal() || t.Restarts > 0) {
		out += ": " + said
	}
	return out
}

// Watch sends events from a token on, or from now.
func (e events) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	l, err := e.s.leading()
	if err != nil {
		return err
	}
	if !eventlog.IsToken(req.GetToken()) {
		return rpcerr.Invalid(&nusav1.Problem{Field: "token", Message: fmt.Sprintf("%.40q is no token: take that of an event", req.GetToken())})
	}
	if own := e.s.cfg.Region.GetName(); req.GetRegion() != "" && req.GetRegion() != own {
		return rpcerr.Invalid(&nusav1.Problem{Field: "region", Message: "this is region " + own + "; ask a global server for others"})
	}
	for next := l.events.After(req.GetToken()); ; {
		list, after, changed := l.events.From(next)
		for _, ev := range list {
			if !req.GetInstances() && strings.HasPrefix(ev.GetType(), instanceEvent) {
				continue
			}
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
