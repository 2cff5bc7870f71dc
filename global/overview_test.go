package global

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/overview/model"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// overviewReader reads a stream of the overview.
type overviewReader struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[nusav1.OverviewUpdate]
	model.Model
	// messages counts what was received.
	messages int
}

// overview opens a stream with the shortest interval.
func (s *testServer) overview(req *nusav1.WatchOverviewRequest) *overviewReader {
	s.t.Helper()
	req.Interval = durationpb.New(250 * time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	s.t.Cleanup(cancel)
	stream, err := nusav1.NewOverviewClient(s.conn).Watch(ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	return &overviewReader{t: s.t, stream: stream}
}

// until reads until ok returns true.
func (r *overviewReader) until(what string, ok func() bool) {
	r.t.Helper()
	for !r.Synced || !ok() {
		m, err := r.stream.Recv()
		if err != nil {
			r.t.Fatalf("not %s: %v; regions %v, jobs %v, errors %v", what, err, r.Regions(), r.Jobs(), r.Errors)
		}
		r.messages++
		r.Apply(m)
	}
}

func (r *overviewReader) jobNames() (out string) {
	var names []string
	for _, j := range r.Jobs() {
		names = append(names, j.GetJob().GetName()+"="+strings.TrimPrefix(j.GetState().String(), "JOB_STATE_"))
	}
	return strings.Join(names, " ")
}

// TestOverview: the stream shows regions, servers, jobs, edges and silent regions, also through a
// standby.
func TestOverview(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	standby := f.start(t, "g2")
	a := s.joined("alpha")
	s.joined("beta")
	s.submit(testJob("one", 2))
	r := standby.overview(&nusav1.WatchOverviewRequest{Edges: true, Jobs: &nusav1.OverviewJobFilter{}})
	r.until("complete", func() bool {
		return len(r.Regions()) == 2 && r.Region("alpha").GetState() == nusav1.RegionState_REGION_STATE_CONNECTED && r.Region("alpha").GetNodesReady() > 0 &&
			len(r.Jobs()) == 1 && r.Counts.GetTotal() == 1 && len(r.Head.GetServers()) == 2 && len(r.Columns) == 2
	})
	if r.Head.GetInfo().GetName() != "g1" || r.Jobs()[0].GetDesired() != 2 || len(r.Jobs()[0].GetRegions()) == 0 {
		t.Errorf("head %v, job %v", r.Head, r.Jobs()[0])
	}
	a.send(row(map[string]float64{"beta": 25}))
	r.until("measured", func() bool { e, _ := r.Edge("alpha", "beta"); return e.P50 == 250 && e.State == 1|1<<3 })

	a.leave()
	r.until("silent", func() bool {
		is := r.Region("alpha")
		return is.GetState() == nusav1.RegionState_REGION_STATE_DISCONNECTED && is.GetLastSeen() != nil
	})
	s.submit(testJob("two", 1))
	r.until("with the second job", func() bool { return len(r.Jobs()) == 2 && r.Counts.GetTotal() == 2 })
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "two"}, Purge: true}); err != nil {
		t.Fatal(err)
	}
	r.until("without the purged job", func() bool { return len(r.Jobs()) == 1 && r.Counts.GetTotal() == 1 })
}

// TestOverviewSelectsJobs: a filter bounds the list, and the counts are those of all selected jobs.
func TestOverviewSelectsJobs(t *testing.T) {
	s := newFederation().start(t, "g1")
	for i := range 5 {
		s.submit(testJob(fmt.Sprintf("api-%d", i), 1, func(spec *nusav1.JobSpec) { spec.Labels = map[string]string{"odd": fmt.Sprint(i % 2)} }))
		s.submit(testJob(fmt.Sprintf("web-%d", i), 1))
	}
	r := s.overview(&nusav1.WatchOverviewRequest{Jobs: &nusav1.OverviewJobFilter{
		Search: "api", Labels: map[string]string{"odd": "0"}, Limit: 2, States: []nusav1.JobState{nusav1.JobState_JOB_STATE_PENDING}, After: &nusav1.JobRef{Namespace: "default", Name: "api-1"},
	}})
	r.until("filtered", func() bool { return r.jobNames() == "api-2=PENDING api-4=PENDING" && r.Counts.GetTotal() == 3 })
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api-2"}}); err != nil {
		t.Fatal(err)
	}
	r.until("without the stopped job", func() bool { return r.jobNames() == "api-4=PENDING" && r.Counts.GetTotal() == 2 })
	only := s.overview(&nusav1.WatchOverviewRequest{})
	only.until("counted", func() bool {
		return only.Counts.GetTotal() == 10 && only.Counts.GetStates()["JOB_STATE_STOPPED"] == 1 && len(only.Jobs()) == 0
	})
}

// regionOverview is the Overview service of a fake region: one node for each call.
type regionOverview struct {
	nusav1.UnimplementedOverviewServer
}

// overviewCalls counts the calls of all fake regions.
var overviewCalls atomic.Int32

func (o *regionOverview) Watch(req *nusav1.WatchOverviewRequest, stream grpc.ServerStreamingServer[nusav1.OverviewUpdate]) error {
	err := stream.Send(&nusav1.OverviewUpdate{Reset_: true, Synced: true, Nodes: []*nusav1.OverviewNode{{Id: fmt.Sprint("node-", overviewCalls.Add(1)), Name: req.GetNodesOf()}}})
	if err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestOverviewOfNodes: nodes come from their region. While the region is silent the last known ones
// stay, with an error, and they are read again when it returns.
func TestOverviewOfNodes(t *testing.T) {
	s := newFederation().start(t, "g1")
	a := s.joined("alpha")
	s.serveTunnels(a)
	r := s.overview(&nusav1.WatchOverviewRequest{NodesOf: "alpha"})
	two := s.overview(&nusav1.WatchOverviewRequest{NodesOf: "alpha"})
	ids := func(r *overviewReader) (out []string) {
		for _, n := range r.Nodes() {
			out = append(out, n.GetId())
		}
		return out
	}
	for _, x := range []*overviewReader{r, two} {
		x.until("with its node", func() bool { return slices.Equal(ids(x), []string{"node-1"}) && len(x.Errors) == 0 })
	}
	a.leave()
	r.until("with an error", func() bool { return len(r.Errors) == 1 && strings.Contains(r.Errors[0].GetMessage(), "last known") })
	if !slices.Equal(ids(r), []string{"node-1"}) {
		t.Errorf("nodes %v", ids(r))
	}
	s.serveTunnels(s.joined("alpha"))
	r.until("with the node again", func() bool { return len(r.Errors) == 0 && slices.Equal(ids(r), []string{"node-2"}) })
}

// TestOverviewRefuses: errors of requests name the field.
func TestOverviewRefuses(t *testing.T) {
	s := newFederation().start(t, "g1")
	for field, req := range map[string]*nusav1.WatchOverviewRequest{
		"interval":    {Interval: durationpb.New(time.Millisecond)},
		"jobs.limit":  {Jobs: &nusav1.OverviewJobFilter{Limit: 1001}},
		"jobs.states": {Jobs: &nusav1.OverviewJobFilter{States: []nusav1.JobState{99}}},
		"jobs.search": {Jobs: &nusav1.OverviewJobFilter{Search: "a\x00b"}},
		"only_nodes":  {OnlyNodes: true},
	} {
		stream, err := nusav1.NewOverviewClient(s.conn).Watch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	stream, err := nusav1.NewOverviewClient(s.conn).Watch(t.Context(), &nusav1.WatchOverviewRequest{NodesOf: "nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = stream.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown region: %v", err)
	}
}
