package global

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/enroll"
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

// collect reads the durable events of a server from a number on, until it has one of this type. It
// returns the events, and fails if a number is missing.
func (s *testServer) collect(from uint64, until string) (out []string, last uint64) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	watch, err := nusav1.NewEventsClient(s.conn).Watch(ctx, &nusav1.WatchEventsRequest{Token: strconv.FormatUint(from, 10), Durable: true})
	if err != nil {
		s.t.Fatal(err)
	}
	for last = from; ; {
		e, err := watch.Recv()
		if err != nil {
			s.t.Fatalf("no %s after %q: %v", until, out, err)
		}
		if last++; e.GetNumber() != last || e.GetReset_() {
			s.t.Fatalf("%v, want number %d", e, last)
		}
		out = append(out, e.GetType()+" "+e.GetSubject())
		if out[len(out)-1] == until {
			return out, last
		}
	}
}

// TestEventsSurviveElections: the numbers continue at each later active server, also after one that lost
// its store in the middle, and a consumer sees each event once. A standby forwards the watches.
func TestEventsSurviveElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		first := f.start(t, "g1")
		waitActive(t, first)
		first.submit(testJob("a", 1))
		all, last := first.collect(0, "job.submitted default/a")
		second := f.start(t, "g2")
		next := func(s *testServer, until string) {
			t.Helper()
			more, at := s.collect(last, until)
			all, last = append(all, more...), at
		}
		second.submit(testJob("b", 1)) // forwarded
		next(second, "job.submitted default/b")
		first.store.Cut(true) // dies without a word
		if _, err := first.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: testJob("lost", 1)}); err == nil {
			t.Error("a submit without the store")
		}
		waitActive(t, second)
		second.submit(testJob("c", 1))
		next(second, "job.submitted default/c")
		if _, err := second.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "a"}, Purge: true}); err != nil {
			t.Fatal(err)
		}
		next(second, "job.purged default/a")
		first.store.Cut(false)
		second.stop()
		waitActive(t, first)
		first.submit(testJob("d", 1))
		next(first, "job.submitted default/d")
		whole, end := first.collect(0, "job.submitted default/d")
		if end != last || !slices.Equal(whole, all) {
			t.Errorf("from the beginning: %q, in steps: %q", whole, all)
		}
		for job, want := range map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "lost": 0} {
			n := 0
			for _, e := range all {
				if e == "job.submitted default/"+job {
					n++
				}
			}
			if n != want {
				t.Errorf("%s was submitted %d times: %q", job, n, all)
			}
		}
		first.stop()
	})
}

func TestEventsAboutMembers(t *testing.T) {
	for want, e := range map[string]audit.Entry{
		"member.joined":      {Verb: "join", Kind: "member"},
		"member.banned":      {Verb: "ban", Kind: "node", Reason: "lost laptop"},
		"member.unbanned":    {Verb: "ban", Kind: "region", Reason: "off"},
		"join_token.created": {Verb: "create", Kind: "join token"},
		"":                   {Verb: "renew", Kind: "member"},
	} {
		if kind, some := memberEvent(e); kind != want || some != (want != "") {
			t.Errorf("%s %s: %q, %v", e.Verb, e.Kind, kind, some)
		}
	}
	term := &leadershipTerm{state: state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })}
	ours := records{store: newFederation().mem.Client(), active: func() *leadershipTerm { return nil }}
	entry := &audit.Entry{Verb: "ban", Kind: "node", Name: "n1", Region: "alpha", Reason: "lost laptop"}
	if err := ours.Change(t.Context(), enroll.Change{Puts: []enroll.Put{{Key: "test/x", Value: []byte("x")}}, Audit: entry}); err != nil {
		t.Fatal(err) // a standby has the change in its log only
	}
	term.addMemberEvent(*entry)
	term.state.Events.Release()
	watch, err := eventlog.NewWatch(t.Context(), term.state.Events.Window, term.state.Events, "0", 0)
	if err != nil {
		t.Fatal(err)
	}
	events, _, err := watch.Next(t.Context())
	if err != nil || len(events) != 1 || events[0].GetType() != "member.banned" || events[0].GetSubject() != "n1" || events[0].GetRegion() != "alpha" {
		t.Errorf("got %v, %v", events, err)
	}
}

// TestWatchesSelectEvents: a watch gets the events of the types and subjects that it wants, and a wrong
// request is refused with its field.
func TestWatchesSelectEvents(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.submit(testJob("other", 1))
	s.submit(testJob("api", 1))
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	events := nusav1.NewEventsClient(s.conn)
	watch, err := events.Watch(ctx, &nusav1.WatchEventsRequest{Token: "0", Types: []string{"region.", "job.sub"}, SubjectPrefix: "default/a"})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := watch.Recv(); err != nil || e.GetSubject() != "default/api" || e.GetNamespace() != "default" || e.GetNumber() == 0 || e.GetLog() == "" {
		t.Errorf("got %v, %v", e, err)
	}
	for field, req := range map[string]*nusav1.WatchEventsRequest{
		"types":     {Types: make([]string, 65)},
		"types[0]":  {Types: []string{""}},
		"token":     {Token: "nonsense"},
		"instances": {Instances: true, Durable: true},
	} {
		watch, err := events.Watch(ctx, req)
		if err == nil {
			_, err = watch.Recv()
		}
		if problems := rpcerr.From(err).Problems; status.Code(err) != codes.InvalidArgument || len(problems) != 1 || problems[0].GetField() != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
