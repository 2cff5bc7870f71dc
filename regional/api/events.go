package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	durable "github.com/nusa-scheduler/nusa/regional/events"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// instanceEvents is the prefix of the types of events about instances.
	instanceEvents = "instance."
	// maxEventTypes bounds WatchEventsRequest.types.
	maxEventTypes = 64
	// eventBatch is how many durable events are read at once.
	eventBatch = 512
)

// events is the Events service. It sends the durable events of the region: about its own jobs, its
// instances and its nodes. It also sends the events of the present term that are not durable.
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
	if err := e.check(req); err != nil {
		return err
	}
	w := eventWatch{req: req, source: durable.Source{Log: e.s.State}, stream: rights.Readable(stream)}
	soft := m.Events.After("")
	if err := w.begin(); err != nil {
		return err
	}
	for {
		_, changed := e.s.State.Watch()
		more, err := w.sendDurable(stream.Context())
		if err != nil {
			return err
		}
		list, next, added := m.Events.From(soft)
		if err := w.sendSoft(list); err != nil {
			return err
		}
		soft = next
		if more {
			continue
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-e.s.Stopping:
			return errStopping
		case <-m.Done:
			return raftlog.ErrNoMaster
		case <-changed:
		case <-added:
		}
	}
}

// check validates a request.
func (e events) check(req *nusav1.WatchEventsRequest) error {
	if !eventlog.IsToken(req.GetToken()) {
		return rpcerr.Invalid(&nusav1.Problem{Field: "token", Message: fmt.Sprintf("%.40q is not a token: use the token of an event", req.GetToken())})
	}
	own := e.s.region()
	if req.GetRegion() != "" && req.GetRegion() != own {
		return rpcerr.Invalid(&nusav1.Problem{Field: "region", Message: "this is region " + own + "; ask a global server for others"})
	}
	if len(req.GetTypes()) > maxEventTypes {
		return rpcerr.Invalid(&nusav1.Problem{Field: "types", Message: fmt.Sprintf("%d types, at most %d", len(req.GetTypes()), maxEventTypes)})
	}
	return nil
}

// eventWatch is one call of Watch. It has sent the durable events up to number n.
type eventWatch struct {
	req    *nusav1.WatchEventsRequest
	source durable.Source
	stream grpc.ServerStreamingServer[nusav1.Event]
	n      uint64
}

// begin sets the number from which the watch begins. If events are missing, it sends a reset event.
func (w *eventWatch) begin() error {
	var gap *nusav1.Event
	switch {
	case w.req.GetToken() != "":
		w.n, gap = w.source.Resume(w.req.GetToken())
	case w.req.GetSince().AsDuration() > 0:
		w.n, gap = w.source.Since(time.Now().Add(-w.req.GetSince().AsDuration()))
	default:
		w.n = w.source.Last()
	}
	if gap == nil {
		return nil
	}
	gap.Time = timestamppb.Now()
	return w.stream.Send(gap)
}

// sendDurable sends the next durable events. more is true if others may follow at once.
func (w *eventWatch) sendDurable(ctx context.Context) (more bool, err error) {
	list, missed, err := w.source.After(ctx, w.n, eventBatch)
	if err != nil {
		return false, err
	}
	if missed > 0 { // the reader is slower than retention
		w.n = list[0].GetNumber() - 1
		gap := &nusav1.Event{Reset_: true, Token: w.source.Token(w.n), Time: timestamppb.Now(), Missed: missed, Message: "this reader is too slow"}
		if err := w.stream.Send(gap); err != nil {
			return false, err
		}
	}
	for _, event := range list {
		w.n = event.GetNumber()
		if !w.wants(event) {
			continue
		}
		if err := w.stream.Send(event); err != nil {
			return false, err
		}
	}
	return len(list) == eventBatch, nil
}

// sendSoft sends events that are not durable. A watch that resumes after one resumes after the latest
// durable event before it.
func (w *eventWatch) sendSoft(list []*nusav1.Event) error {
	for _, event := range list {
		if event.GetReset_() || w.req.GetDurable() || !w.wants(event) {
			continue
		}
		event.Token, event.Region = w.source.Token(w.n), w.source.Log.View().Cluster().Region
		if err := w.stream.Send(event); err != nil {
			return err
		}
	}
	return nil
}

// wants reports whether the caller asked for the event.
func (w *eventWatch) wants(event *nusav1.Event) bool {
	of := func(prefix string) bool { return strings.HasPrefix(event.GetType(), prefix) }
	types := w.req.GetTypes()
	if of(instanceEvents) && !w.req.GetInstances() && !slices.ContainsFunc(types, func(p string) bool { return strings.HasPrefix(p, instanceEvents) }) {
		return false
	}
	return (len(types) == 0 || slices.ContainsFunc(types, of)) && strings.HasPrefix(event.GetSubject(), w.req.GetSubjectPrefix())
}
