package state

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestCheckpointsWriteOnlyWhatChanged: the checkpoints of many regions share a transaction, an
// unchanged report is not written, and a changed report writes no summaries that take more than a
// few bytes.
func TestCheckpointsWriteOnlyWhatChanged(t *testing.T) {
	const regions = 40
	c, g := committing(t)
	close(g.gate)
	for i := range regions {
		if _, err := c.Do(t.Context(), putRegion(fmt.Sprintf("r%02d", i))); err != nil {
			t.Fatal(err)
		}
	}
	st := c.st
	report := func(name string, nodes int32) {
		st.Lock()
		defer st.Unlock()
		r := st.Regions[name]
		r.SetReport(&nusav1.RegionReport{NodesReady: nodes}, 0, false)
		r.ReportDue = true
	}
	summarise := func(name string, from, jobs int) {
		st.Lock()
		defer st.Unlock()
		r := st.Regions[name]
		for i := from; i < from+jobs; i++ {
			sum := &nusav1.JobSummary{Namespace: "default", Job: fmt.Sprintf("job-%05d", i), Index: uint64(i + 1)}
			k := JobKey{"default", sum.GetJob()}
			st.job(k).Summaries.Put(name, sum)
			r.SummaryKeys[SummaryKey(name, sum)] = struct{}{}
		}
		r.SummariesAt, r.CheckpointDue = link.Position{Epoch: "e", Sequence: uint64(from + jobs)}, true
	}
	every := Checkpoints{State: st, Commit: c, Interval: time.Second, Log: slog.Default()}
	// stored returns the number of records in each transaction of the next checkpoints.
	stored := func() string {
		t.Helper()
		g.mu.Lock()
		g.txns = nil
		g.mu.Unlock()
		if err := every.storeAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		return fmt.Sprint(g.txns)
	}
	expect := func(what, want string) {
		t.Helper()
		if got := stored(); got != want {
			t.Errorf("%s: %s records, want %s", what, got, want)
		}
	}
	expect("nothing is known", "[]")
	for i := range regions {
		report(fmt.Sprintf("r%02d", i), 1)
	}
	expect("a report of each region", "[40]")
	expect("nothing new", "[]")
	report("r07", 1)
	expect("the same report again", "[]")
	report("r07", 2)
	expect("another report", "[1]")
	summarise("r07", 0, 100)
	expect("few summaries", "[1]")
	summarise("r07", 100, 2000)
	expect("many summaries", "[2]")
	report("r07", 3)
	expect("another report beside many summaries", "[1]")

	again := New(Beginning{Epoch: "f"}, func() time.Duration { return 0 })
	if err := again.Load(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	r := again.Regions["r07"]
	if len(r.SummaryKeys) != 2100 || r.Report.GetNodesReady() != 3 || r.SummariesAt != (link.Position{Epoch: "e", Sequence: 2100}) {
		t.Errorf("%d summaries up to %v, %d nodes", len(r.SummaryKeys), r.SummariesAt, r.Report.GetNodesReady())
	}

	st.Lock()
	for key := range st.Regions["r07"].SummaryKeys {
		if !strings.Contains(key, "job-0000") {
			delete(st.Regions["r07"].SummaryKeys, key)
		}
	}
	st.Regions["r07"].CheckpointDue = true
	st.Unlock()
	expect("few summaries again: the second record is removed", "[2]")
}

// BenchmarkCheckpoint collects the checkpoint of a region that has 20,000 jobs.
func BenchmarkCheckpoint(b *testing.B) {
	const jobs = 20_000
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	r := &Region{Name: "here", SummaryKeys: map[string]struct{}{}}
	st.Regions[r.Name] = r
	for i := range jobs {
		sum := &nusav1.JobSummary{
			Namespace: "default", Job: fmt.Sprintf("job-%05d", i), Index: uint64(i + 1), Version: 1, Run: 1,
			Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 1}},
		}
		st.job(JobKey{"default", sum.GetJob()}).Summaries.Put(r.Name, sum)
		r.SummaryKeys[SummaryKey(r.Name, sum)] = struct{}{}
	}
	c := Checkpoints{State: st}
	b.ReportAllocs()
	for b.Loop() {
		r.CheckpointDue = true
		if len(c.collect(r.Name)) == 0 {
			b.Fatal("nothing to store")
		}
	}
}
