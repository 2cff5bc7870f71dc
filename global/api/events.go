package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// MaxInstanceWatches bounds the watches that follow the instances of all regions.
	MaxInstanceWatches = 16
	// instanceQueue is how many events from regions are queued for a slow reader. After that, the
	// regions' streams wait too.
	instanceQueue = 256
	// retryPause is the pause after the stream of a region's events has failed.
	retryPause = time.Second
	// instanceEvent is the prefix of the types of events about instances.
	instanceEvent = "instance."
)

// now is a closed channel.
var now = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// eventsAPI is the public Events service.
type eventsAPI struct {
	nusav1.UnimplementedEventsServer
	s *Services
}

// Watch implements nusav1.EventsServer.
func (e *eventsAPI) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	term, err := e.s.term()
	if err != nil {
		return err
	}
	stream = rights.Readable(stream)
	if req.GetRegion() != "" {
		return relayRegionEvents(term, req, stream)
	}
	filter, err := checkWatch(req)
	if err != nil {
		return err
	}
	watch, err := eventlog.NewWatch(stream.Context(), term.State.Events.Window, term.State.Events, req.GetToken(), req.GetSince().AsDuration())
	if err != nil {
		return rpcError(err)
	}
	var regions *instanceEvents // nil: the caller does not want events about instances
	if req.GetInstances() {
		regions, err = newInstanceEvents(stream.Context(), term)
		if err != nil {
			return err
		}
		defer regions.end()
	}
	for {
		events, added, err := watch.Next(stream.Context())
		if err != nil {
			return rpcError(err)
		}
		for _, ev := range events {
			if filter.Match(ev) {
				if err := stream.Send(ev); err != nil {
					return err
				}
			}
			switch {
			case ev.GetReset_():
				regions.followAll() // events about connected regions may be among the dropped ones
			case ev.GetType() == "region.connected":
				regions.follow(ev.GetSubject())
			}
		}
		if len(events) > 0 {
			added = now // there may be more events
		}
		if more, err := sendInstanceEvents(term, stream, regions, filter, watch.Token(), added); !more {
			return err
		}
	}
}

// checkWatch checks a request, and returns its filter.
func checkWatch(req *nusav1.WatchEventsRequest) (eventlog.Filter, error) {
	filter, err := eventlog.FilterOf(req)
	if wrong := (*eventlog.FilterError)(nil); errors.As(err, &wrong) {
		return filter, invalid(wrong.Field, wrong.Message)
	}
	switch {
	case !eventlog.IsToken(req.GetToken()):
		err = invalid("token", fmt.Sprintf("%.40q is not a token: use the token or the number of an event", req.GetToken()))
	case req.GetDurable() && req.GetInstances():
		err = invalid("instances", "this server has no durable events about instances: watch the events of one region, or leave out `durable`")
	}
	return filter, err
}

// sendInstanceEvents sends the events of regions' instances until added is closed. It returns
// false when the watch has ended. token is the token of the term's latest event. It replaces the
// regions' tokens, which are not valid at this server.
func sendInstanceEvents(
	term *Term, stream grpc.ServerStreamingServer[nusav1.Event], regions *instanceEvents, filter eventlog.Filter, token string, added <-chan struct{},
) (more bool, err error) {
	for {
		select {
		case <-stream.Context().Done():
			return false, nil
		case <-term.Context.Done():
			return false, rpcError(state.ErrNotActive)
		case <-added:
			return true, nil
		case ev := <-regions.queue():
			ev.Token = token
			if !filter.Match(ev) {
				continue
			}
			if err := stream.Send(ev); err != nil {
				return false, err
			}
		}
	}
}

// relayRegionEvents sends the events of one region.
func relayRegionEvents(term *Term, req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	conn, err := term.dial(req.GetRegion())
	if err != nil {
		return err
	}
	up, err := nusav1.NewEventsClient(conn).Watch(stream.Context(), req)
	if err != nil {
		return err
	}
	return relay(up, stream.Send)
}

// instanceEvents follows the events about the instances of every connected region.
type instanceEvents struct {
	term   *Term
	ctx    context.Context
	cancel context.CancelFunc
	out    chan *nusav1.Event
	wg     sync.WaitGroup
	conns  map[string]*grpc.ClientConn // the connection of each region's session that was followed last
}

func newInstanceEvents(ctx context.Context, term *Term) (*instanceEvents, error) {
	if term.instanceWatches.Add(1) > MaxInstanceWatches {
		term.instanceWatches.Add(-1)
		return nil, status.Errorf(codes.ResourceExhausted, "%d watches follow the instances of every region: end another one, or ask one region", MaxInstanceWatches)
	}
	r := &instanceEvents{term: term, out: make(chan *nusav1.Event, instanceQueue), conns: map[string]*grpc.ClientConn{}}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.followAll()
	return r, nil
}

// followAll follows the regions that are connected now.
func (r *instanceEvents) followAll() {
	if r == nil {
		return
	}
	conns, _ := r.term.reach(nil)
	for _, c := range conns {
		r.follow(c.name)
	}
}

func (r *instanceEvents) end() {
	r.cancel()
	r.wg.Wait()
	r.term.instanceWatches.Add(-1)
}

// queue returns the channel of the events. If the caller does not want events about instances, it
// returns nil, a channel that never delivers.
func (r *instanceEvents) queue() <-chan *nusav1.Event {
	if r == nil {
		return nil
	}
	return r.out
}

// follow begins to queue the events about a region's instances, until the region's session ends. In
// the watch, the event region.disconnected shows where the gap begins, and region.connected where
// it ends.
func (r *instanceEvents) follow(name string) {
	if r == nil {
		return
	}
	conn, err := r.term.dial(name)
	if err != nil || r.conns[name] == conn {
		return
	}
	r.conns[name] = conn
	r.wg.Go(func() { r.receive(name, conn) })
}

// receive queues a region's events as long as the region's session lasts. When the stream of events
// fails, it adds an event about the gap. Then it asks again for the events after the last one.
func (r *instanceEvents) receive(name string, conn *grpc.ClientConn) {
	gap := func(at *timestamppb.Timestamp, message string) error {
		return r.put(&nusav1.Event{Time: at, Type: "instance.gap", Subject: name, Message: message})
	}
	token, gapReported := "", false
	for {
		up, err := nusav1.NewEventsClient(conn).Watch(r.ctx, &nusav1.WatchEventsRequest{Instances: true, Token: token})
		if err == nil {
			err = relay(up, func(ev *nusav1.Event) error {
				token, gapReported = ev.GetToken(), false
				switch {
				case ev.GetReset_():
					return gap(ev.GetTime(), "events are missing: there were more than could be sent")
				case !strings.HasPrefix(ev.GetType(), instanceEvent):
					return nil // the region reports these to the global tier itself
				}
				ev.Message = name + ": " + ev.GetMessage()
				return r.put(ev)
			})
		}
		if !gapReported && r.ctx.Err() == nil {
			_ = gap(timestamppb.Now(), "events are missing for now: "+status.Convert(err).Message())
			gapReported = true
		}
		select {
		case <-r.ctx.Done():
			return
		case <-time.After(retryPause):
		}
		if again, err := r.term.dial(name); err != nil || again != conn {
			return // the region's next session adds the event region.connected, which calls follow
		}
	}
}

func (r *instanceEvents) put(ev *nusav1.Event) error {
	select {
	case r.out <- ev:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}
