package global

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
)

func (s *testServer) audit() nusav1.AuditClient { return nusav1.NewAuditClient(s.conn) }

// exported returns the trail of a server.
func (s *testServer) exported() audit.Export { return s.exportOf(&nusav1.ExportAuditRequest{}) }

// exportOf returns an exported trail.
func (s *testServer) exportOf(req *nusav1.ExportAuditRequest) audit.Export {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	stream, err := s.audit().Export(ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	var x audit.Export
	for x.Checkpoint == "" {
		chunk, err := stream.Recv()
		if err != nil {
			s.t.Fatal(err)
		}
		if h := chunk.GetHead(); h != nil {
			x.Trail, x.Key = h.GetTrail(), h.GetKey()
			x.Base, err = auditwire.Tree(h.GetBase())
		}
		if p := chunk.GetPart(); p != nil {
			var before audit.Tree
			before, err = auditwire.Tree(p.GetBefore())
			x.Marks = append(x.Marks, before)
			for _, e := range p.GetEntries() {
				x.Entries = append(x.Entries, auditwire.Exported(e))
			}
		}
		x.Checkpoint = chunk.GetCheckpoint().GetSigned()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return x
}

func line(e *nusav1.AuditEntry) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s %s %s/%s %s %s", e.GetSeq(), e.GetVerb(), e.GetKind(), e.GetNamespace(), e.GetName(), e.GetOutcome(), e.GetReason()))
}

// TestAuditTrail: each change is in the trail with its caller. A later server continues the trail,
// and the whole trail is sound. Its checkpoints also fit to those of before.
func TestAuditTrail(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	ctx := metadata.AppendToOutgoingContext(t.Context(), recorder.RequestHeader, "request-1")
	if _, err := s.jobs().Submit(ctx, &nusav1.SubmitRequest{Spec: testJob("api", 1)}); err != nil {
		t.Fatal(err)
	}
	s.submit(testJob("api", 2))
	if _, err := s.jobs().Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "api"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := nusav1.NewRegionsClient(s.conn).Define(ctx, &nusav1.DefineRegionRequest{Definition: &nusav1.RegionDefinition{Name: "alpha"}}); err != nil {
		t.Fatal(err)
	}
	resp, err := s.audit().List(ctx, &nusav1.ListAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range resp.GetEntries() {
		lines = append(lines, line(e))
	}
	want := []string{
		"4 define region /alpha done", "3 stop job default/api done", "2 submit job default/api done version 2", "1 submit job default/api done version 1",
	}
	if !slices.Equal(lines, want) {
		t.Fatalf("%q, want %q", lines, want)
	}
	first, second := resp.GetEntries()[3], resp.GetEntries()[2]
	if first.GetMethod() != "Jobs/Submit" || first.GetRequest() != "request-1" || first.GetFrom() == "" || second.GetRequest() == "" {
		t.Errorf("%v", first)
	}
	if len(first.GetBefore()) > 0 || len(first.GetAfter()) != 32 || string(first.GetAfter()) != string(second.GetBefore()) {
		t.Errorf("hashes %x, %x, then %x", first.GetBefore(), first.GetAfter(), second.GetBefore())
	}
	x := s.exported()
	if report := audit.Verify(x, x.Key); len(report.Findings) > 0 || report.Signed != 5 { // the export is in the trail
		t.Errorf("%+v", report)
	}
	s.stop()
	s = f.start(t, "g2")
	s.submit(testJob("web", 1))
	later := s.exported()
	if report := audit.Verify(later, x.Key, x.Checkpoint); len(report.Findings) > 0 || report.Signed != 7 || len(report.TooOld) > 0 {
		t.Errorf("after the election of another server: %+v", report)
	}
	later.Entries[2].Entry.Who = "operator/mallory"
	if report := audit.Verify(later, x.Key); len(report.Findings) != 1 || report.Findings[0].From != 3 || report.Findings[0].Damage != audit.Changed {
		t.Errorf("a changed entry: %+v", report)
	}
}

// TestAuditPages: pages have each entry once, the latest first, also filtered.
func TestAuditPages(t *testing.T) {
	s := newFederation().start(t, "g1")
	for i := range 7 {
		s.submit(testJob(fmt.Sprint("api-", i), 1))
	}
	s.submit(testJob("web", 1))
	read := func(req *nusav1.ListAuditRequest) (seqs []int64) {
		for {
			resp, err := s.audit().List(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range resp.GetEntries() {
				seqs = append(seqs, e.GetSeq())
			}
			req.Page = resp.GetNextPage()
			if req.Page == "" {
				return seqs
			}
		}
	}
	for name, c := range map[string]struct {
		req  *nusav1.ListAuditRequest
		want []int64
	}{
		"all":      {&nusav1.ListAuditRequest{Limit: 3}, []int64{8, 7, 6, 5, 4, 3, 2, 1}},
		"names":    {&nusav1.ListAuditRequest{Limit: 2, Name: "api-*"}, []int64{7, 6, 5, 4, 3, 2, 1}},
		"one":      {&nusav1.ListAuditRequest{Seq: 3}, []int64{3}},
		"no verb":  {&nusav1.ListAuditRequest{Verb: "exec"}, nil},
		"a person": {&nusav1.ListAuditRequest{Who: "operator/*"}, nil},
	} {
		if got := read(c.req); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if _, err := s.audit().List(t.Context(), &nusav1.ListAuditRequest{Page: "x"}); err == nil {
		t.Error("a page that does not exist")
	}
}

// TestNoChangeWithoutItsEntry: a change whose entry cannot be written is not stored, because both
// are one transaction.
func TestNoChangeWithoutItsEntry(t *testing.T) {
	s := newFederation().start(t, "g1")
	s.submit(testJob("api", 1))
	_, err := s.store.Txn(t.Context(), nil, []store.Op{store.Delete("/nusa/v1/audit-state")}) // by another program
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: testJob("web", 1)}); err == nil {
		t.Fatal("the submit succeeded")
	}
	if _, ok, _, err := s.store.Get(t.Context(), "/nusa/v1/jobs/default/web"); ok || err != nil {
		t.Errorf("the job is stored: %t, %v", ok, err)
	}
}

// TestCallsBelowAreAudited: log reads, exec sessions and changes of nodes have entries before the
// region hears of them.
func TestCallsBelowAreAudited(t *testing.T) {
	s := newFederation().start(t, "g1")
	a := s.joined("alpha")
	s.serveTunnels(a, "aaaa1111")
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	logs, err := nusav1.NewAllocationsClient(s.conn).Logs(ctx, &nusav1.LogsRequest{Allocation: "aaaa", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := logs.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := nusav1.NewNodesClient(s.conn).Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n-alpha", Region: "alpha"}); err != nil {
		t.Fatal(err)
	}
	exec, err := nusav1.NewAllocationsClient(s.conn).Exec(ctx)
	if err == nil {
		err = exec.Send(&nusav1.ExecRequest{Start: &nusav1.ExecRequest_Start{Allocation: "aaaa", Command: []string{"true"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = exec.Recv() // the fake region does not serve exec
	resp, err := s.audit().List(ctx, &nusav1.ListAuditRequest{})
	var lines []string
	for _, e := range resp.GetEntries() {
		if e.GetKind() != "region" {
			lines = append(lines, fmt.Sprintln(e.GetVerb(), e.GetKind(), e.GetName(), e.GetRegion(), e.GetOutcome()))
		}
	}
	want := "exec allocation aaaa1111 alpha started\nremove node n-alpha alpha started\nlogs allocation aaaa1111 alpha started\n"
	if got := strings.Join(lines, ""); got != want || err != nil {
		t.Errorf("%s%v, want %s", got, err, want)
	}
}
