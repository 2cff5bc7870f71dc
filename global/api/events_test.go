package api

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// failingEvents is a region that sends one event for each call, and then fails.
type failingEvents struct {
	nusav1.UnimplementedEventsServer
	calls atomic.Int32
}

func (f *failingEvents) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	n := f.calls.Add(1)
	if n > 2 {
		<-stream.Context().Done()
		return nil
	}
	_ = stream.Send(&nusav1.Event{Token: fmt.Sprint("r-", n), Type: "instance.running", Message: "after " + req.GetToken()})
	return status.Error(codes.Unavailable, "the tunnel broke")
}

// slowReader is a watch whose reader takes an event only when the test wants one.
type slowReader struct {
	grpc.ServerStream
	ctx    context.Context
	events chan *nusav1.Event
}

func (s *slowReader) Context() context.Context { return s.ctx }

func (s *slowReader) Send(e *nusav1.Event) error {
	select {
	case s.events <- proto.CloneOf(e):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// TestInstancesAreFollowedAgain: a reader is so slow that events are dropped, and
// a region connects meanwhile. The watch follows that region although the event of
// its connection was dropped. After a failure the watch continues after the last
// event.
func TestInstancesAreFollowedAgain(t *testing.T) {
	lis, srv := bufconn.Listen(1<<16), grpc.NewServer()
	nusav1.RegisterEventsServer(srv, &failingEvents{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(lis) })
	defer serving.Wait()
	defer srv.Stop()
	conn, err := grpc.NewClient("passthrough:///alpha", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	term := NewTerm(TermConfig{State: st, Context: t.Context(), Log: slog.New(slog.DiscardHandler)})
	s := &Services{Current: func() *Term { return term }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	reader := &slowReader{ctx: ctx, events: make(chan *nusav1.Event)}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	st.Events.Add("first", "", "")
	st.Events.Release()
	watching.Go(func() {
		if err := (&eventsAPI{s: s}).Watch(&nusav1.WatchEventsRequest{Instances: true, Token: "e-0"}, reader); err != nil && ctx.Err() == nil {
			t.Errorf("the watch ended: %v", err)
		}
	})
	next := func() *nusav1.Event {
		t.Helper()
		select {
		case e := <-reader.events:
			return e
		case <-ctx.Done():
			t.Fatal("no further event")
			return nil
		}
	}
	if e := next(); e.GetType() != "first" {
		t.Fatalf("the first event: %v", e)
	}
	st.Events.Add("second", "", "")
	st.Events.Release() // the reader does not read this event yet
	st.Lock()
	st.Regions["alpha"] = &state.Region{
		Name: "alpha", Record: &nusav1.Region{ClusterId: "c", Definition: &nusav1.RegionDefinition{Name: "alpha"}},
		Session: &state.Session{Conn: func() (*grpc.ClientConn, error) { return conn, nil }},
	}
	st.Unlock()
	for range 2 * eventlog.Retained {
		st.Events.Add("other", "", "")
		st.Events.Release()
	}
	var got []string
	for len(got) < 4 {
		if e := next(); strings.HasPrefix(e.GetType(), instanceEvent) {
			got = append(got, e.GetType()+" "+e.GetMessage())
		}
	}
	broke := "instance.gap events are missing for now: the tunnel broke"
	if want := []string{"instance.running alpha: after ", broke, "instance.running alpha: after r-1", broke}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
