package global

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/api"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestEvents(t *testing.T) {
	s := newFederation().start(t, "g1")
	events := nusav1.NewEventsClient(s.conn)
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	watch, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Token: "of-another-term-1"})
	if err != nil {
		t.Fatal(err)
	}
	reset, err := watch.Recv()
	if err != nil || !reset.GetReset_() {
		t.Fatalf("an old token: %v, %v", reset, err)
	}
	s.submit(testJob("api", 1))
	e, err := watch.Recv()
	if err != nil || e.GetType() != "job.submitted" || e.GetSubject() != "default/api" {
		t.Fatalf("event %v, %v", e, err)
	}
	// A watch from a token gets every later event exactly once.
	again, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Token: reset.GetToken()})
	if err != nil {
		t.Fatal(err)
	}
	if same, err := again.Recv(); err != nil || same.GetToken() != e.GetToken() {
		t.Errorf("resumed with %v, %v, want %v", same, err, e)
	}
	// A job without a region is stopped and forgotten at once.
	if _, err := s.jobs().Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}, Purge: true}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"job.stopped", "job.purged"} {
		if e, err := watch.Recv(); err != nil || e.GetType() != want {
			t.Errorf("event %v, %v, want %s", e, err, want)
		}
	}
}

// regionEventsServer sends an event of an instance and one of a node. Their texts
// repeat the request.
type regionEventsServer struct {
	nusav1.UnimplementedEventsServer
}

func (r *regionEventsServer) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	for _, e := range []*nusav1.Event{
		{Token: "r-1", Type: "node.lost", Subject: "n1"},
		{Token: "r-2", Type: "instance.failed", Subject: "default/api", Message: "web[0] after " + req.GetToken()},
	} {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

// TestEventsOfInstances: a watch that wants them gets the events about instances
// of every region that is connected or connects, with the federation's tokens. A
// watch of one region gets the region's own events.
func TestEventsOfInstances(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.serveTunnels(s.joined("alpha"))
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	events := nusav1.NewEventsClient(s.conn)
	watch, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Instances: true})
	if err != nil {
		t.Fatal(err)
	}
	// until returns the next event of a type. No event before it may be of the
	// types that only regions send.
	until := func(kind string) *nusav1.Event {
		t.Helper()
		for {
			e, err := watch.Recv()
			if err != nil {
				t.Fatalf("no %s: %v", kind, err)
			}
			if e.GetType() == kind {
				return e
			}
			if e.GetSubject() == "n1" || strings.HasPrefix(e.GetType(), "instance.") {
				t.Errorf("unexpected: %v", e)
			}
		}
	}
	first := until("instance.failed")
	if first.GetMessage() != "alpha: web[0] after " || !strings.Contains(first.GetToken(), "-") || first.GetToken() == "r-2" {
		t.Errorf("got %v", first)
	}
	s.serveTunnels(s.joined("beta"))
	until("region.connected")
	if second := until("instance.failed"); second.GetMessage() != "beta: web[0] after " {
		t.Errorf("got %v", second)
	}

	own, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Region: "beta", Token: "r-0"})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := own.Recv(); err != nil || e.GetToken() != "r-1" || e.GetSubject() != "n1" {
		t.Errorf("of one region: %v, %v", e, err)
	}
	nowhere, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Region: "nowhere"})
	if err == nil {
		_, err = nowhere.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("of no region: %v", err)
	}
	for range api.MaxInstanceWatches - 1 {
		more, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Instances: true})
		if err != nil {
			t.Fatal(err)
		}
		for {
			if e, err := more.Recv(); err != nil {
				t.Fatal(err)
			} else if e.GetType() == "instance.failed" {
				break
			}
		}
	}
	tooMany, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Instances: true})
	if err == nil {
		_, err = tooMany.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
}
