package state

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
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
			NoteSummary(st, r, SummaryKey(name, sum), sum)
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
	expect("many summaries: record 0 and all others", "[6]")
	report("r07", 3)
	expect("another report beside many summaries", "[1]")
	summarise("r07", 300, 1)
	expect("a changed summary", "[2]")
	summarise("r07", 2100, 100)
	expect("new summaries", "[2]")

	again := New(Beginning{Epoch: "f"}, func() time.Duration { return 0 })
	if err := again.Load(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	r := again.Regions["r07"]
	if len(r.SummaryKeys) != 2200 || r.Report.GetNodesReady() != 3 || r.SummariesAt != (link.Position{Epoch: "e", Sequence: 2200}) {
		t.Errorf("%d summaries up to %v, %d nodes", len(r.SummaryKeys), r.SummariesAt, r.Report.GetNodesReady())
	}

	st.Lock()
	r = st.Regions["r07"]
	for key := range maps.Clone(r.SummaryKeys) {
		if !strings.Contains(key, "job-0000") {
			ForgetSummary(st, r, key)
		}
	}
	r.CheckpointDue = true
	st.Unlock()
	expect("few summaries again: the other records are removed", "[6]")
	summarise("r07", 0, 1)
	expect("a changed summary of these", "[2]")
}

// TestNoCheckpointOfARemovedRegion: a region is removed, and another one gets its name, while its checkpoint is on its
// way. The other region does not get the checkpoint.
func TestNoCheckpointOfARemovedRegion(t *testing.T) {
	c, g := committing(t)
	close(g.gate)
	do := func(change func(*Tx) error) {
		t.Helper()
		if _, err := c.Do(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	do(putRegion("oslo"))
	c.st.Lock()
	c.st.Regions["oslo"].SetReport(&nusav1.RegionReport{NodesReady: 7}, 0, false)
	c.st.Regions["oslo"].CheckpointDue = true
	c.st.Unlock()
	every := Checkpoints{State: c.st, Commit: c, Log: slog.Default()}
	late := every.collect("oslo")
	do(func(t *Tx) error { return t.DeleteRegion("oslo") })
	do(putRegion("oslo"))
	if err := every.store(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	again := New(Beginning{Epoch: "f"}, func() time.Duration { return 0 })
	if err := again.Load(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if got := again.Regions["oslo"].Report; len(late) != 1 || got != nil {
		t.Errorf("the new region has the report %v of the removed one, from %d records", got, len(late))
	}
}

// BenchmarkCheckpoint collects the checkpoint of a region that has 20,000 jobs, with a new server and after some summaries
// have changed.
func BenchmarkCheckpoint(b *testing.B) {
	const jobs = 20_000
	for _, changed := range []int{jobs, 100, 1} {
		b.Run(fmt.Sprint(changed), func(b *testing.B) {
			st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
			r := &Region{Name: "here", SummaryKeys: map[string]int32{}}
			st.Regions[r.Name] = r
			keys := make([]string, jobs)
			for i := range keys {
				sum := &nusav1.JobSummary{
					Namespace: "default", Job: fmt.Sprintf("job-%05d", i), Index: uint64(i + 1), Version: 1, Run: 1,
					Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 1}},
				}
				st.job(JobKey{"default", sum.GetJob()}).Summaries.Put(r.Name, sum)
				keys[i] = SummaryKey(r.Name, sum)
				NoteSummary(st, r, keys[i], sum)
			}
			c := Checkpoints{State: st}
			r.CheckpointDue = true
			c.collect(r.Name)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				for i := range changed {
					r.stored.note(r.SummaryKeys[keys[(n*changed+i)%jobs]])
				}
				r.CheckpointDue = true
				if len(c.collect(r.Name)) == 0 {
					b.Fatal("nothing to store")
				}
			}
		})
	}
}

// TestRestoredSummariesAreThoseOfTheRecord: a server that starts keeps the encoded summaries of a checkpoint. It
// then knows the same as one that decodes the record: also for batch jobs, for a region's own jobs, for
// a job that was purged, and for a record whose summaries have another form.
func TestRestoredSummariesAreThoseOfTheRecord(t *testing.T) {
	const name = "oslo"
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.apply(RegionPrefix+name, &nusav1.Region{ClusterId: "o"}, 1)
	for i, job := range []string{"api", "shop", "batch"} {
		spec := testJob(job, 2)
		if job == "batch" {
			spec.Type = nusav1.JobType_JOB_TYPE_BATCH
		}
		st.apply(jobPrefix+"default/"+job, &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1}}, int64(2+i))
	}
	counts := map[string]*nusav1.InstanceCounts{"web": {Running: 1, Failed: 1}}
	sums := []*nusav1.JobSummary{
		{Namespace: "default", Job: "api", Groups: counts, Index: 5, Version: 1, Override: &nusav1.Override{Held: 2}},
		{Namespace: "default", Job: "api", Local: true, Groups: counts, Index: 6},
		{Namespace: "default", Job: "batch", Groups: counts, Index: 7},
		{Namespace: "default", Job: "purged", Index: 8},
		{Namespace: "default", Job: "shop", Index: 9, Run: 3},
		{Namespace: "default", Job: "shop", Index: 4, Run: 2}, // older than the one before
	}
	value, err := Encode(&nusav1.CheckpointRecord{Position: &nusav1.Position{Epoch: "x", Sequence: 9}, Chunks: 1, Report: &nusav1.RegionReport{NodesReady: 3}, Summaries: sums[1:]})
	if err != nil {
		t.Fatal(err)
	}
	// The fields of the first summary have another order.
	turned := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "api")
	rest := proto.CloneOf(sums[0])
	rest.Job = ""
	turned, err = proto.MarshalOptions{}.MarshalAppend(turned, rest)
	if err != nil {
		t.Fatal(err)
	}
	value = protowire.AppendBytes(protowire.AppendTag(value, checkpointSummaries, protowire.BytesType), turned)
	st.loading = true
	read := record{kv: store.KV{Key: CheckpointKey(name, 0), Value: value, ModRevision: 9}}
	if err := decodeOne(&read, nil); err != nil {
		t.Fatal(err)
	}
	st.apply(read.kv.Key, read.value, 9)
	r := st.Regions[name]
	if err := restoreCheckpoint(st, r); err != nil {
		t.Fatal(err)
	}
	if r.SummariesAt != (link.Position{Epoch: "x", Sequence: 9}) || r.Report.GetNodesReady() != 3 || r.checkpoint != nil {
		t.Errorf("summaries up to %v, %d nodes", r.SummariesAt, r.Report.GetNodesReady())
	}
	if got := slices.Sorted(maps.Keys(r.SummaryKeys)); !slices.Equal(got, []string{"default/api", "default/api@oslo", "default/batch", "default/purged", "default/shop"}) {
		t.Errorf("summaries of %v", got)
	}
	for job, want := range map[string]*nusav1.JobSummary{"api": sums[0], "batch": sums[2], "shop": sums[4]} {
		want = proto.CloneOf(want)
		want.Namespace, want.Job = "", ""
		if got := st.Jobs[JobKey{"default", job}].Summaries.Get(name); !proto.Equal(got, want) {
			t.Errorf("%s: %v, want %v", job, got, want)
		}
	}
	if !st.Letters.Noted(JobKey{"default", "batch"}) {
		t.Error("the failed instance of the batch job is not noted")
	}
	for what, bad := range map[string][]byte{"another format": {7}, "a cut record": value[:len(value)-1], "a cut summary": append(slices.Clone(value), 0x1a, 1, 0x80)} {
		read := record{kv: store.KV{Key: CheckpointKey(name, 0), Value: bad, ModRevision: 9}}
		err := decodeOne(&read, nil)
		if err == nil {
			st.apply(read.kv.Key, read.value, 9)
			err = restoreCheckpoint(st, r)
		}
		if !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
