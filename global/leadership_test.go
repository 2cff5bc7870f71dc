package global

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func waitKey(t *testing.T, s store.Store, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	_, ok, rev, err := s.Get(ctx, key)
	if ok || err != nil {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	seen := errors.New("seen")
	err = s.Watch(ctx, key, rev, func(events []store.Event) error {
		if !events[len(events)-1].Deleted {
			return seen
		}
		return nil
	})
	if !errors.Is(err, seen) {
		t.Fatalf("%s was not written: %v", key, err)
	}
}

func TestStandbyForwards(t *testing.T) {
	f := newFederation()
	active := f.start(t, "g1")
	standby := f.start(t, "g2")
	// A region and a client may connect to any server.
	r := standby.joined("alpha")
	standby.submit(testJob("api", 1))
	r.waitSlot("default/api/web/0", accepted)
	for _, s := range []*testServer{active, standby} {
		list, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{})
		if err != nil || len(list.GetJobs()) != 1 {
			t.Errorf("%s lists %v, %v", s.addr, list, err)
		}
	}
	info, err := nusav1.NewSystemClient(standby.conn).Info(t.Context(), &nusav1.InfoRequest{})
	if err != nil || info.GetLeader() || info.GetName() != "g2" || info.GetLeaderAddress() != active.addr {
		t.Errorf("the standby says %v, %v", info, err)
	}
	tree, err := nusav1.NewTopologyClient(standby.conn).Get(t.Context(), &nusav1.GetTopologyRequest{})
	if err != nil || len(tree.GetServers()) != 2 || !tree.GetServers()[0].GetActive() || tree.GetServers()[0].GetName() != "g1" {
		t.Errorf("servers %v, %v", tree.GetServers(), err)
	}
}

// TestActiveCutOff: the active server loses the store. Its successor continues with
// the stored records, and the predecessor can no longer write.
func TestActiveCutOff(t *testing.T) {
	f := newFederation()
	first := f.start(t, "g1")
	second := f.start(t, "g2")
	r := first.joined("alpha")
	first.submit(testJob("api", 2))
	slot := r.waitSlot("default/api/web/0", accepted)
	r.summarize(true, 4, &nusav1.JobSummary{Namespace: "default", Job: "api", Incarnation: 1, Index: 5,
		Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 2}}})
	other := f.mem.Client()
	defer other.Close()
	waitKey(t, other, state.CheckpointKey("alpha", 0))

	first.store.Cut(true)
	r.wait("end of its session", func() bool { return r.err != nil })
	waitActive(t, second)
	// The checkpoint says what runs before the region is back.
	j, err := second.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
		t.Errorf("after the takeover: %v, %v", j.GetStatus(), err)
	}
	again := second.join(helloOf("alpha", 1))
	again.wait("welcome", func() bool { return again.welcome != nil })
	if got := again.welcome.GetSummaries().GetSequence(); got != 4 {
		t.Errorf("summaries resume at %d, want 4", got)
	}
	same := again.waitSlot("default/api/web/0", accepted)
	if same.GetGeneration() != slot.GetGeneration() {
		t.Errorf("generation %d became %d", slot.GetGeneration(), same.GetGeneration())
	}
	second.submit(testJob("more", 1))
	again.waitSlot("default/more/web/0", accepted)
	// With the store again, the first server is a standby and forwards.
	first.store.Cut(false)
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := first.jobs().List(ctx, &nusav1.ListJobsRequest{})
		if err == nil && len(list.GetJobs()) == 2 {
			return
		}
		if status.Code(err) != codes.Unavailable && err != nil {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the first server does not forward: %v", err)
		}
	}
}

func waitActive(t *testing.T, s *testServer) {
	t.Helper()
	waitInfo(t, s, "active", (*nusav1.InfoResponse).GetLeader)
}

func waitInfo(t *testing.T, s *testServer, what string, ok func(*nusav1.InfoResponse) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := nusav1.NewSystemClient(s.conn).Info(ctx, &nusav1.InfoRequest{})
		if err == nil && ok(info) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s does not become %s: %v", s.addr, what, err)
		}
	}
}

// TestNoQuorum: when the store does not respond, the error says so with a hint when
// to retry, and the write is not acknowledged.
func TestNoQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) { c.Clock = func() time.Duration { return time.Since(start) } })
		s.store.Cut(true)
		for _, what := range []string{"in progress when the store went", "after the store went"} {
			_, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: testJob("api", 1)})
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no quorum") || rpcerr.From(err).RetryAfter <= 0 {
				t.Errorf("a submit %s: %v", what, err)
			}
			synctest.Wait() // the term has ended
		}
		s.store.Cut(false)
		waitActive(t, s)
		if list, err := s.jobs().List(t.Context(), &nusav1.ListJobsRequest{}); err != nil || len(list.GetJobs()) != 0 {
			t.Errorf("refused submits left %v, %v", list, err)
		}
		s.stop()
	})
}

// TestIdleStreamsEndWithTheTerm: watches and streams of submits end with UNAVAILABLE
// when their server is no longer active.
func TestIdleStreamsEndWithTheTerm(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.submit(testJob("api", 1))
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	many, err := s.jobs().SubmitMany(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := many.Send(&nusav1.SubmitRequest{Spec: testJob("other", 1)}); err != nil {
		t.Fatal(err)
	}
	job, err := s.jobs().Watch(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
	if err != nil {
		t.Fatal(err)
	}
	regions, err := nusav1.NewRegionsClient(s.conn).Watch(ctx, &nusav1.ListRegionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	matrix, err := nusav1.NewTopologyClient(s.conn).Watch(ctx, &nusav1.MatrixRequest{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := nusav1.NewEventsClient(s.conn).Watch(ctx, &nusav1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// A response shows that the term serves the streams.
	if _, err := many.Recv(); err != nil {
		t.Fatal(err)
	}
	s.store.Cut(true)
	for name, next := range map[string]func() error{
		"SubmitMany":     func() error { _, err := many.Recv(); return err },
		"Jobs.Watch":     func() error { _, err := job.Recv(); return err },
		"Regions.Watch":  func() error { _, err := regions.Recv(); return err },
		"Topology.Watch": func() error { _, err := matrix.Recv(); return err },
		"Events.Watch":   func() error { _, err := events.Recv(); return err },
	} {
		var err error
		for err == nil {
			err = next()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s ended with %v", name, err)
		}
	}
}

// slowLoad calls begun when the load of the jobs begins, and goes on a second later.
type slowLoad struct {
	store.Store
	begun func()
}

func (s *slowLoad) List(ctx context.Context, prefix string, visit func(store.KV) error) (int64, error) {
	if prefix == "/nusa/v1/jobs/" {
		s.begun()
		time.Sleep(time.Second)
	}
	return s.Store.List(ctx, prefix, visit)
}

// TestRegionsWaitForTheLoad: a region that connects while the server loads the records is welcomed
// when they are loaded. If it were refused, it would come back only after a pause.
func TestRegionsWaitForTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		first := make(chan *nusav1.GlobalMessage, 1)
		load := &slowLoad{begun: func() {
			go func() {
				stream, err := nusav1.NewFederationClient(f.dial(t, "g1:7600")).Session(t.Context())
				if err == nil {
					err = stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Hello{Hello: helloOf("alpha", 1)}})
				}
				var m *nusav1.GlobalMessage
				if err == nil {
					m, err = stream.Recv()
				}
				if err != nil {
					t.Error(err)
				}
				first <- m
			}()
		}}
		refused, begun := make(chan error, 1), load.begun
		load.begun = func() {
			begun()
			go func() {
				_, err := nusav1.NewJobsClient(f.dial(t, "g1:7600")).List(t.Context(), &nusav1.ListJobsRequest{})
				refused <- err
			}()
		}
		s := f.start(t, "g1", func(c *Config) { load.Store, c.Store = c.Store, load })
		if err := <-refused; status.Code(err) != codes.Unavailable || !strings.Contains(status.Convert(err).Message(), "global server g1 is elected and has been loading its records for 0s") {
			t.Errorf("a list while the server loads: %v", err)
		}
		if m := <-first; m.GetWelcome() == nil {
			t.Errorf("the region got %v", m)
		}
		s.stop()
	})
}
