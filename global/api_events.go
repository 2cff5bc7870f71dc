package global

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxInstanceWatches bounds the watches that follow every region at once.
	maxInstanceWatches = 16
	// instancesAhead is how many events of regions wait for a slow reader before
	// the regions' streams wait as well.
	instancesAhead = 256
	// followAgain is the wait after a region's events could not be followed.
	followAgain = time.Second
	// instanceEvent begins the types of events about instances.
	instanceEvent = "instance."
)

// eventsAPI is the public Events service.
type eventsAPI struct {
	nusav1.UnimplementedEventsServer
	s *server
}

// Watch implements nusav1.EventsServer.
func (e *eventsAPI) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	a, err := e.s.current()
	if err != nil {
		return err
	}
	if req.GetRegion() != "" {
		return a.regionEvents(req, stream)
	}
	if !eventlog.IsToken(req.GetToken()) {
		return invalid("token", fmt.Sprintf("%.40q is no token: take that of an event", req.GetToken()))
	}
	next := a.st.Events.After(req.GetToken())
	var regions *regionsEvents // nil asks none
	if req.GetInstances() {
		if regions, err = a.newRegionsEvents(stream.Context()); err != nil {
			return err
		}
		defer regions.end()
	}
	for token := a.st.Events.Before(next); ; {
		events, after, changed := a.st.Events.From(next)
		for _, ev := range events {
			if err := stream.Send(ev); err != nil {
				return err
			}
			token = ev.GetToken()
			switch {
			case ev.GetReset_():
				regions.followAll() // who connected meanwhile is not told
			case ev.GetType() == "region.connected":
				regions.follow(ev.GetSubject())
			}
		}
		next = after
		for again := false; !again; {
			select {
			case <-stream.Context().Done():
				return nil
			case <-a.ctx.Done():
				return apiError(ErrNotActive)
			case <-changed:
				again = true
			case ev := <-regions.queue():
				ev.Token = token // a region's means nothing here
				if err := stream.Send(ev); err != nil {
					return err
				}
			}
		}
	}
}

// regionEvents passes a region's own events on.
func (a *active) regionEvents(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	conn, err := a.dial(req.GetRegion())
	if err != nil {
		return err
	}
	up, err := nusav1.NewEventsClient(conn).Watch(stream.Context(), req)
	if err != nil {
		return err
	}
	return relay(up, stream.Send)
}

// regionsEvents follows what the instances of every connected region do.
type regionsEvents struct {
	a      *active
	ctx    context.Context
	cancel context.CancelFunc
	out    chan *nusav1.Event
	wg     sync.WaitGroup
	conns  map[string]*grpc.ClientConn // of the session that was last followed
}

func (a *active) newRegionsEvents(ctx context.Context) (*regionsEvents, error) {
	if a.instanceWatches.Add(1) > maxInstanceWatches {
		a.instanceWatches.Add(-1)
		return nil, status.Errorf(codes.ResourceExhausted, "%d watches follow the instances of every region: end another one, or ask one region", maxInstanceWatches)
	}
	r := &regionsEvents{a: a, out: make(chan *nusav1.Event, instancesAhead), conns: map[string]*grpc.ClientConn{}}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.followAll()
	return r, nil
}

// followAll follows the regions that are connected now.
func (r *regionsEvents) followAll() {
	if r == nil {
		return
	}
	conns, _ := r.a.reach(nil)
	for _, c := range conns {
		r.follow(c.name)
	}
}

func (r *regionsEvents) end() {
	r.cancel()
	r.wg.Wait()
	r.a.instanceWatches.Add(-1)
}

// queue is where the events come; nil, which nothing comes from, where none are
// asked for.
func (r *regionsEvents) queue() <-chan *nusav1.Event {
	if r == nil {
		return nil
	}
	return r.out
}

// follow begins to pass on what a region's instances do, until its session
// ends: region.disconnected tells of the gap, region.connected ends it.
func (r *regionsEvents) follow(name string) {
	if r == nil {
		return
	}
	conn, err := r.a.dial(name)
	if err != nil || r.conns[name] == conn {
		return
	}
	r.conns[name] = conn
	r.wg.Go(func() { r.pass(name, conn) })
}

// pass passes a region's events on for as long as its session is there. Where
// they do not come it tells of the gap, and asks again from where it was.
func (r *regionsEvents) pass(name string, conn *grpc.ClientConn) {
	gap := func(at *timestamppb.Timestamp, message string) error {
		return r.put(&nusav1.Event{Time: at, Type: "instance.gap", Subject: name, Message: message})
	}
	token, told := "", false
	for {
		up, err := nusav1.NewEventsClient(conn).Watch(r.ctx, &nusav1.WatchEventsRequest{Instances: true, Token: token})
		if err == nil {
			err = relay(up, func(ev *nusav1.Event) error {
				token, told = ev.GetToken(), false
				switch {
				case ev.GetReset_():
					return gap(ev.GetTime(), "more happened than could be passed on")
				case !strings.HasPrefix(ev.GetType(), instanceEvent):
					return nil // it tells the global tier what matters here
				}
				ev.Message = name + ": " + ev.GetMessage()
				return r.put(ev)
			})
		}
		if !told && r.ctx.Err() == nil {
			_ = gap(timestamppb.Now(), "its instances are not followed now: "+status.Convert(err).Message())
			told = true
		}
		select {
		case <-r.ctx.Done():
			return
		case <-time.After(followAgain):
		}
		if again, err := r.a.dial(name); err != nil || again != conn {
			return // region.connected tells of its next session
		}
	}
}

func (r *regionsEvents) put(ev *nusav1.Event) error {
	select {
	case r.out <- ev:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}
