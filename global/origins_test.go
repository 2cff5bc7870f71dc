package global

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/origins"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func originRec(domain string, regions ...string) *nusav1.OriginRecord {
	out := &nusav1.OriginRecord{Domain: domain}
	for _, r := range regions {
		out.Origins = append(out.Origins, &nusav1.Origin{Region: r, Address: r + ".example:443"})
	}
	return out
}

// measure sends a row with a round trip that counts for both directions, since the
// peer sends no row.
func (r *fakeRegion) measure(to string, rtt time.Duration) {
	d := durationpb.New(rtt)
	r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Latency{Latency: &nusav1.LatencyRow{Edges: []*nusav1.Edge{{
		From: r.hello.GetDefinition().GetName(), To: to, State: nusav1.EdgeState_EDGE_STATE_OK, Source: nusav1.RTTSource_RTT_SOURCE_MEASURED,
		P50: d, P90: d, P99: d, Min: d, Samples: 20, Method: "udp", Age: durationpb.New(0),
	}}}}})
}

// TestOrigins: records are set by revision, sent to every region, served by a
// standby, loaded by the next active server, and decide which region serves a
// client.
func TestOrigins(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	standby := f.start(t, "g2")
	alpha, beta := s.joined("alpha"), s.joined("beta")
	s.joined("gamma")
	ctx := t.Context()
	api := nusav1.NewOriginsClient(standby.conn)
	alpha.wait("an empty table", func() bool { return alpha.origins != nil })

	one, err := api.Set(ctx, &nusav1.SetOriginsRequest{Record: originRec("*.Example.com.", "beta", "gamma"), Revision: -1})
	if err != nil || one.GetDomain() != "*.example.com" || one.GetRevision() == 0 {
		t.Fatalf("set: %v, %v", one, err)
	}
	same, err := api.Set(ctx, &nusav1.SetOriginsRequest{Record: originRec("*.example.com", "beta", "gamma"), Revision: one.GetRevision()})
	if err != nil || same.GetRevision() != one.GetRevision() {
		t.Errorf("set the same: %v, %v", same, err)
	}
	for i, tc := range []struct {
		record   *nusav1.OriginRecord
		revision int64
		code     codes.Code
		text     string
	}{
		{originRec("*.example.com", "beta"), -1, codes.Aborted, "exists already"},
		{originRec("*.example.com", "beta"), one.GetRevision() + 1, codes.Aborted, "it was changed meanwhile"},
		{originRec("other.com", "beta"), 5, codes.Aborted, "does not exist"},
		{originRec("other.com", "mars"), 0, codes.InvalidArgument, "there is no region \"mars\""},
		{nil, 0, codes.InvalidArgument, "record.domain"},
	} {
		_, err := api.Set(ctx, &nusav1.SetOriginsRequest{Record: tc.record, Revision: tc.revision})
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%d: %v, want %s with %q", i, err, tc.code, tc.text)
		}
	}
	alpha.measure("beta", 90*time.Millisecond)
	alpha.measure("gamma", 30*time.Millisecond)
	alpha.wait("the record", func() bool { return len(alpha.origins.GetRecords()) == 1 })
	beta.wait("alpha's row in the column", func() bool { return len(beta.column.GetEdges()) == 1 })
	got, err := api.Resolve(ctx, &nusav1.ResolveOriginRequest{Domain: "www.example.com", Region: "alpha"})
	if err != nil || got.GetRecord() != "*.example.com" || got.GetChoice().GetRegion() != "gamma" || got.GetChoice().GetAddress() != "gamma.example:443" ||
		got.GetChoice().GetPath().GetRtt().AsDuration() != 30*time.Millisecond || len(got.GetOthers()) != 1 {
		t.Errorf("resolve: %v, %v", got, err)
	}
	if _, err := api.Resolve(ctx, &nusav1.ResolveOriginRequest{Domain: "www.example.com", Region: "mars"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a client in an unknown region: %v", err)
	}
	if _, err := api.Resolve(ctx, &nusav1.ResolveOriginRequest{Domain: "example.com", Region: "alpha"}); status.Code(err) != codes.NotFound {
		t.Errorf("a domain without a record: %v", err)
	}

	s.stop()
	waitActive(t, standby)
	list, err := api.List(ctx, &nusav1.ListOriginsRequest{})
	if err != nil || len(list.GetRecords()) != 1 || list.GetRecords()[0].GetRevision() != one.GetRevision() {
		t.Errorf("after a change of the active server: %v, %v", list, err)
	}
	if _, err := api.Remove(ctx, &nusav1.RemoveOriginsRequest{Domain: "*.example.com", Revision: 1}); status.Code(err) != codes.Aborted {
		t.Errorf("remove another revision: %v", err)
	}
	if _, err := api.Remove(ctx, &nusav1.RemoveOriginsRequest{Domain: "*.EXAMPLE.com", Revision: one.GetRevision()}); err != nil {
		t.Error(err)
	}
	if _, err := api.Remove(ctx, &nusav1.RemoveOriginsRequest{Domain: "*.example.com"}); status.Code(err) != codes.NotFound {
		t.Errorf("remove nothing: %v", err)
	}
	again := standby.joined("alpha")
	again.wait("the empty table", func() bool { return again.origins != nil && len(again.origins.GetRecords()) == 0 })
}

// TestTooManyOrigins: the limit also counts the origins that one transaction adds.
func TestTooManyOrigins(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.joined("alpha")
	api := nusav1.NewOriginsClient(s.conn)
	answers := make(chan error, origins.MaxRecords+20)
	for i := range cap(answers) {
		go func() {
			_, err := api.Set(t.Context(), &nusav1.SetOriginsRequest{Record: originRec(fmt.Sprintf("d%d.com", i), "alpha")})
			answers <- err
		}()
	}
	refused := 0
	for range cap(answers) {
		if err := <-answers; err != nil {
			if refused++; status.Code(err) != codes.ResourceExhausted {
				t.Errorf("one too many: %v", err)
			}
		}
	}
	list, err := api.List(t.Context(), &nusav1.ListOriginsRequest{})
	if err != nil || len(list.GetRecords()) != origins.MaxRecords || refused != 20 {
		t.Errorf("%d records, %d refused, %v", len(list.GetRecords()), refused, err)
	}
}

// TestProbeDemand: regions learn soon which peers the near rules of jobs ask about.
func TestProbeDemand(t *testing.T) {
	s := newFederation().start(t, "g1")
	alpha, _, gamma := s.joined("alpha"), s.joined("beta"), s.joined("gamma")
	demand := func(r *fakeRegion, in string) float64 {
		for _, p := range r.peers.GetRegions() {
			if p.GetName() == in {
				return p.GetProbeDemand()
			}
		}
		return -1
	}
	alpha.wait("peers", func() bool { return demand(alpha, "gamma") == 0 && demand(alpha, "beta") == 0 })
	s.submit(testJob("api", 1, func(j *nusav1.JobSpec) {
		j.Regions = &nusav1.RegionsSpec{
			Allow: []*nusav1.RegionSelector{{Name: "alpha"}},
			Near:  []*nusav1.Near{{Selector: &nusav1.RegionSelector{Name: "gamma"}, MaxRtt: durationpb.New(time.Second), Required: true}},
		}
	}))
	alpha.wait("probe demand", func() bool { return demand(alpha, "gamma") == 0.8 && demand(alpha, "beta") == 0 })
	gamma.wait("probe demand", func() bool { return demand(gamma, "alpha") == 0.8 && demand(gamma, "beta") == 0 })
	alpha.measure("gamma", 10*time.Millisecond)
	alpha.waitSlot("default/api/web/0", accepted)
	alpha.wait("more demand where the job runs", func() bool { return demand(alpha, "gamma") == 1 })
	if _, err := s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api"}}); err != nil {
		t.Fatal(err)
	}
	gamma.wait("no demand", func() bool { return demand(gamma, "alpha") == 0 })
}
