package regional_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
)

// eventReader reads events until an event of a type about a subject.
type eventReader struct {
	t     *testing.T
	token string
	seen  []*nusav1.Event
	last  uint64
}

// until reads from a server, after the last event that was read. Numbers must follow one another.
func (r *eventReader) until(conn *grpc.ClientConn, kind, subject string) *nusav1.Event {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := nusav1.NewEventsClient(conn).Watch(ctx, &nusav1.WatchEventsRequest{Token: r.token, Instances: true, Durable: true})
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			r.t.Fatalf("%v after event %d, wait for %s %s", err, r.last, kind, subject)
		}
		r.token = e.GetToken()
		if !e.GetReset_() && (e.GetNumber() != r.last+1 || e.GetLog() == "" || e.GetRegion() != regionName) {
			r.t.Fatalf("after event %d: %v", r.last, e)
		}
		r.last = e.GetNumber()
		r.seen = append(r.seen, e)
		if e.GetType() == kind && e.GetSubject() == subject || e.GetReset_() && kind == "reset" {
			return e
		}
	}
}

// count returns how many events of a type about a subject were read.
func (r *eventReader) count(kind, subject string) (n int) {
	for _, e := range r.seen {
		if e.GetType() == kind && e.GetSubject() == subject {
			n++
		}
	}
	return n
}

// TestEventsSurviveAnElection: masters die while jobs are submitted and instances start. A reader that
// resumes at the next master gets each event once, and all events are the same when they are read
// again from the beginning.
func TestEventsSurviveAnElection(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		all := []int{1, 2, 3}
		for _, i := range all {
			w.server(i, 1, 2, 3)
		}
		master := w.master(all...)
		r := &eventReader{t: t}
		r.begin(w.conn(master))
		w.agent("n1", runs)
		r.until(w.conn(master), "node.registered", "n1")
		jobs := 0
		submit := func(i int, name string) bool {
			ctx, cancel := callCtx()
			defer cancel()
			_, err := nusav1.NewJobsClient(w.conn(i)).Submit(ctx, &nusav1.SubmitRequest{Spec: spec(name, 1)})
			return err == nil
		}
		for round := range 2 {
			var names []string
			for i := range 4 {
				names = append(names, fmt.Sprintf("job-%d-%d", round, i))
			}
			for _, name := range names[:2] {
				w.eventually("a submit", func() bool { return submit(master, name) })
			}
			w.kill(master) // the reports of the instances are in flight
			rest := without(all, master)
			master = w.master(rest...)
			for _, name := range names {
				w.eventually("a submit", func() bool { return submit(master, name) })
			}
			jobs += len(names)
			if round == 0 {
				r.until(w.conn(master), "job.submitted", "default/"+names[3]+"@"+regionName)
			}
			for _, i := range all {
				if !slices.Contains(rest, i) {
					w.server(i, rest[0])
					w.eventually("the server is back", func() bool { return w.info(i).GetLeaderAddress() == serverAddr(master) })
				}
			}
			time.Sleep(20 * time.Second)
		}
		w.eventually("all run", func() bool { return w.running(master)["n1"] == jobs })
		w.submit(master, spec("end", 0))
		r.until(w.conn(master), "job.submitted", "default/end@"+regionName)
		for round := range 2 {
			for i := range 4 {
				subject := fmt.Sprintf("default/job-%d-%d@%s", round, i, regionName)
				if s, n := r.count("job.submitted", subject), r.count("instance.running", subject); s != 1 || n != 1 {
					t.Errorf("%s: submitted %d times, running %d times", subject, s, n)
				}
			}
		}
		again := &eventReader{t: t}
		again.begin(w.conn(master))
		again.until(w.conn(master), "job.submitted", "default/end@"+regionName)
		if !slices.EqualFunc(r.seen, again.seen, func(a, b *nusav1.Event) bool { return a.String() == b.String() }) {
			t.Errorf("read again: %d events, not %d equal ones", len(again.seen), len(r.seen))
		}
	})
}

// begin sets the token before the first event.
func (r *eventReader) begin(conn *grpc.ClientConn) {
	r.t.Helper()
	ctx, cancel := callCtx()
	defer cancel()
	stream, err := nusav1.NewEventsClient(conn).Watch(ctx, &nusav1.WatchEventsRequest{Token: "none-0"})
	if err != nil {
		r.t.Fatal(err)
	}
	e, err := stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	r.token = e.GetLog() + "-0"
}

// TestEventsSurviveARestart and a restore: a restart repeats and loses none. After a restore from an
// old copy, a reader of the lost log learns of the gap, and no number has two meanings.
func TestEventsSurviveARestart(t *testing.T) {
	defer goleak.VerifyNone(t, probing)
	dir, old := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "copy")
	s := startReal(t, config(dir))
	submit := func(name string) {
		retry(t, func(ctx context.Context) error {
			_, err := nusav1.NewJobsClient(s.conn).Submit(ctx, &nusav1.SubmitRequest{Spec: spec(name, 1)})
			return err
		})
	}
	subject := func(name string) string { return "default/" + name + "@" + regionName }
	submit("one")
	r := &eventReader{t: t}
	r.begin(s.conn)
	r.until(s.conn, "job.submitted", subject("one"))
	s.stop()
	if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	s = startReal(t, config(dir))
	submit("two")
	r.until(s.conn, "job.submitted", subject("two"))
	if n := r.count("job.submitted", subject("one")); n != 1 {
		t.Errorf("the first job was submitted %d times", n)
	}
	s.stop()

	if _, err := regional.Restore(restored(old)); err != nil {
		t.Fatal(err)
	}
	s = startReal(t, config(old))
	defer s.stop()
	submit("three")
	before := r.last
	if gap := r.until(s.conn, "reset", ""); gap.GetMissed() != 0 {
		t.Errorf("%v", gap)
	}
	again := &eventReader{t: t}
	again.begin(s.conn)
	again.until(s.conn, "job.submitted", subject("one"))
	stream, err := nusav1.NewEventsClient(s.conn).Watch(t.Context(), &nusav1.WatchEventsRequest{Token: again.token})
	if err != nil {
		t.Fatal(err)
	}
	recovered, err := stream.Recv()
	if err != nil || recovered.GetType() != "region.recovered" || recovered.GetNumber() <= before+1 {
		t.Errorf("after event %d: %v, %v", before, recovered, err)
	}
}

// TestEventsAreFiltered by types, subject and durability.
func TestEventsAreFiltered(t *testing.T) {
	oneNode(t, func(t *testing.T, w *world, _ nusav1.JobsClient, ctx context.Context) {
		r := &eventReader{t: t}
		r.begin(w.conn(1))
		for _, name := range []string{"a", "b"} {
			w.submit(1, spec(name, 1))
		}
		w.eventually("both run", func() bool { return w.running(1)["n1"] == 2 })
		first := func(req *nusav1.WatchEventsRequest) string {
			req.Token = r.token
			stream, err := nusav1.NewEventsClient(w.conn(1)).Watch(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return e.GetType() + " " + e.GetSubject()
		}
		for want, req := range map[string]*nusav1.WatchEventsRequest{
			"instance.placed default/b@alpha": {Types: []string{"node.lost", "instance."}, SubjectPrefix: "default/b"},
			"job.submitted default/b@alpha":   {SubjectPrefix: "default/b", Durable: true},
			"node.registered n1":              {Durable: true},
		} {
			if got := first(req); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		stream, err := nusav1.NewEventsClient(w.conn(1)).Watch(ctx, &nusav1.WatchEventsRequest{Types: make([]string, 65)})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("65 types: %v", err)
		}
	})
}
