package regional_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// exportTrail returns the exported trail of the region.
func (w *world) exportTrail(i int) audit.Export {
	w.t.Helper()
	ctx, cancel := callCtx()
	defer cancel()
	stream, err := nusav1.NewAuditClient(w.conn(i)).Export(ctx, &nusav1.ExportAuditRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	var x audit.Export
	for x.Checkpoint == "" {
		chunk, err := stream.Recv()
		if err != nil {
			w.t.Fatal(err)
		}
		if h := chunk.GetHead(); h != nil {
			x.Trail, x.Key = h.GetTrail(), h.GetKey()
		}
		for _, e := range chunk.GetPart().GetEntries() {
			x.Entries = append(x.Entries, auditwire.Exported(e))
		}
		x.Checkpoint = chunk.GetCheckpoint().GetSigned()
	}
	return x
}

// TestAuditOfAnIsland: a region without the global tier has a trail of its own. It survives the
// loss of the master, and the new master signs with the same key.
func TestAuditOfAnIsland(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		for i := 1; i <= 3; i++ {
			w.server(i, 1, 2, 3)
		}
		master := w.master(1, 2, 3)
		w.eventually("all servers can read entries", func() bool {
			ctx, cancel := callCtx()
			defer cancel()
			_, err := nusav1.NewAuditClient(w.conn(master)).Checkpoint(ctx, &nusav1.AuditCheckpointRequest{})
			return err == nil
		})
		w.submit(master, spec("api", 1))
		ctx, cancel := callCtx()
		defer cancel()
		list := func(i int) string {
			resp, err := nusav1.NewAuditClient(w.conn(i)).List(ctx, &nusav1.ListAuditRequest{})
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, e := range resp.GetEntries() {
				lines = append(lines, fmt.Sprintf("%d %s %s %s/%s in %s", e.GetSeq(), e.GetVerb(), e.GetKind(), e.GetNamespace(), e.GetName(), e.GetRegion()))
			}
			return strings.Join(lines, "\n")
		}
		if _, err := nusav1.NewJobsClient(w.conn(master)).Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "api", Namespace: "default", Region: regionName}}); err != nil {
			t.Fatal(err)
		}
		want := "2 stop job default/api in " + regionName + "\n1 submit job default/api in " + regionName
		if got := list(master); got != want {
			t.Fatalf("%s\nwant\n%s", got, want)
		}
		before := w.exportTrail(master)
		if report := audit.Verify(before, before.Key); len(report.Findings) > 0 || report.Signed != 3 {
			t.Errorf("%+v", report)
		}
		w.kill(master)
		next := w.master(without([]int{1, 2, 3}, master)...)
		w.submit(next, spec("web", 1))
		after := w.exportTrail(next)
		if report := audit.Verify(after, before.Key, before.Checkpoint); len(report.Findings) > 0 || report.Signed != 5 {
			t.Errorf("after the loss of the master: %+v", report)
		}
	})
}
