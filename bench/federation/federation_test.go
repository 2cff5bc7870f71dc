package federation

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestKinds(t *testing.T) {
	set := newJobSet("bench-1-j", []string{"a", "b", "c", "d"}, "")
	seen, targets := map[kind]int{}, map[string]bool{}
	for i := range 600 {
		spec := set.spec(i)
		job.Default(spec)
		if err := job.Validate(spec); err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
		seen[kindOf(i)]++
		for _, n := range spec.GetRegions().GetNear() {
			targets[n.GetSelector().GetName()] = true
		}
		if at, ours := set.index(spec.GetName()); !ours || at != i {
			t.Errorf("%s is job %d, %t", spec.GetName(), at, ours)
		}
	}
	want := map[kind]int{anywhere: 300, near: 100, nearRequired: 100, spread: 100}
	if !maps.Equal(seen, want) {
		t.Errorf("kinds %v, want %v", seen, want)
	}
	if len(targets) != 4 {
		t.Errorf("targets of near: %v, want all regions", targets)
	}
	if _, ours := set.index("bench-1-w0000001"); ours {
		t.Error("a job of another set is one of this set")
	}
	own := newJobSet("bench-1-j", []string{"a"}, "bench-1").spec(0)
	if got := own.GetRegions().GetAllow()[0].GetLabels()[label]; got != "bench-1" || own.GetRegions().GetSpread().GetMin() != 1 {
		t.Errorf("regions of a job of one region in a running federation: %v", own.GetRegions())
	}
}

func TestTable(t *testing.T) {
	b := newTable(newJobSet("j", []string{"a", "b", "c"}, ""), 2) // job 0 has three slots, job 1 one
	at := func(d time.Duration) time.Time { return b.begin.Add(d * time.Millisecond) }
	slot := func(name string, from, to int32) *nusav1.Slot { return &nusav1.Slot{Job: name, From: from, To: to} }
	b.noteSent(0, at(10))
	b.noteSent(1, at(20))
	for _, s := range []*nusav1.Slot{slot("j0000000", 0, 1), slot("j0000001", 0, 1), slot("j0000000", 1, 3), slot("j0000000", 1, 2), slot("j0000002", 0, 1), slot("other", 0, 1)} {
		b.noteOffered(s, at(time.Duration(30+10*s.GetFrom())))
	}
	select {
	case <-b.offered:
	default:
		t.Error("not all slots count as offered")
	}
	b.noteAccepted(slot("j0000000", 0, 1), at(60))
	r := &Result{}
	b.fill(r)
	if r.Slots != 4 || r.Decided != 4 || r.Accepted != 1 || r.DecidedPerS != 133.3 || r.AcceptedPerS != 20 {
		t.Errorf("%+v", r)
	}
	if want := (Pair{P50: 10, P99: 30}); r.SubmitToOfferedMS != want {
		t.Errorf("submit to offered %v, want %v", r.SubmitToOfferedMS, want)
	}
}

func TestResult(t *testing.T) {
	v := func(f float64) *float64 { return &f }
	full := &Result{
		Regions: 1000, Jobs: 1_000_000, DecidedPerS: 12_345.6, AcceptedPerS: 12_300.1, EtcdJobsPerS: v(15_600), SubmitToOfferedMS: Pair{P50: 3.25, P99: 1234},
		SubmitToRunningMS: Pair{P50: 9, P99: 29}, ServerCPUUSPerJob: v(98.7), ServerPeakRSSMB: v(350.2), BytesWrittenPerJob: v(3019),
		ConnectS: 3.9, ConnectMB: Traffic{Down: 19.5, Up: 92.1}, ConnectMemory: &Memory{140, 99.5},
		Idle: &Idle{Cores: v(0.05), DownBytes: 500, UpBytes: 499, Memory: &Memory{149, 101}}, RestartS: v(2.9), RestartParts: &RestartParts{0.8, 0.4, 1.5, 400_000}, RestartMemory: &Memory{300, 250},
		Slots: 1_333_334, Decided: 1_333_334, Accepted: 1_333_334, Watched: 500, Seconds: 81.2, Concurrency: 4096, SubmitMS: Pair{P50: 2, P99: 20}, Retries: 12,
		Ended: 34, ServingS: 1.9, LoadCPUSeconds: 60.1, Filesystem: "ext4", Incomplete: true,
	}
	full.Parts = &Result{Regions: 1000, Jobs: 20_000, DecidedPerS: 15_432, SubmitToOfferedMS: Pair{P50: 2, P99: 1000}, RestartS: v(1.2)}
	full.Ratios = ratiosOf(full, full.Parts)
	full.Rounds, full.RatiosOfRounds = 3, map[string][]float64{"decided_per_s": {0.71, 0.8, 0.84}, "submit_to_offered_ms_p99": {1.2, 1.23, 1.31}}
	full.Stored = &Stored{Jobs: 1_000_000, Memory: Memory{1350, 1300}, DecidedPerS: 11_111, SubmitToOfferedMS: Pair{P50: 3.5, P99: 1300},
		SubmitToRunningMS: Pair{P50: 10, P99: 31}, ServerCPUUSPerJob: 101, Ratios: map[string]float64{"decided_per_s": 0.9, "server_cpu_us_per_job": 1.02}}
	full.Parts.Stored = &Stored{Ratios: map[string]float64{"decided_per_s": 0.94, "server_cpu_us_per_job": 1.1}}
	var got bytes.Buffer
	for _, r := range []*Result{full, {Regions: 1, Jobs: 1, Stream: true, Idle: &Idle{}}} {
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(append(data, '\n'))
		if err := r.Table(&got); err != nil {
			t.Fatal(err)
		}
	}
	golden.File(t, "testdata/result.txt", got.String())
	for line := range strings.Lines(got.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && !strings.HasPrefix(line, "{") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// options returns the options of a small measurement.
func options(t *testing.T) Options {
	return Options{
		Regions: 4, Jobs: 120, Concurrency: 8, Idle: 100 * time.Millisecond, Etcd: 100 * time.Millisecond, Timeout: time.Minute,
		Dir: t.TempDir(), Executable: os.Args[0],
	}
}

// TestMeasure measures small federations of real processes, by calls and by streams.
func TestMeasure(t *testing.T) {
	t.Parallel() // the tests of this package mostly wait
	for _, stream := range []bool{false, true} {
		o := options(t)
		o.Stream = stream
		if stream {
			o.Stored, o.Parts = 60, 40
		}
		r, err := Measure(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Decided != 160 || r.Accepted != 160 || r.Watched != 15 || r.Ended != 0 || r.DecidedPerS <= 0 {
			t.Errorf("stream %t: %+v", stream, r)
		}
		if *r.EtcdJobsPerS <= 0 || *r.ServerPeakRSSMB <= 0 || *r.BytesWrittenPerJob < 0 || r.ConnectMB.Up <= 0 || r.Idle.Cores == nil || *r.RestartS <= 0 ||
			r.ConnectMemory.OwnMB <= 0 || r.Idle.Memory.RSSMB <= r.Idle.Memory.OwnMB || r.RestartMemory.RSSMB <= 0 || r.RestartParts.EtcdOpen <= 0 || r.RestartParts.Keys < 120 {
			t.Errorf("stream %t: figures are missing: %+v", stream, r)
		}
		if s := r.Stored; (s != nil) != stream || stream && (s.Jobs != 60 || s.DecidedPerS <= 0 || s.Ratios["server_cpu_us_per_job"] <= 0) {
			t.Errorf("stream %t: with jobs stored: %+v", stream, s)
		}
		if stream && (r.Parts.Stored == nil || r.Parts.Stored.Ratios["decided_per_s"] <= 0) {
			t.Errorf("the bare parts: %+v", r.Parts)
		}
		if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
			t.Errorf("left in the folder: %v, %v", left, err)
		}
	}
}

// TestEtcdAloneOnASlowDisk: a measurement in which no transaction ends goes on until one has ended.
func TestEtcdAloneOnASlowDisk(t *testing.T) {
	t.Parallel()
	if r, err := EtcdAlone(t.Context(), t.TempDir(), 1, time.Nanosecond); err != nil || r.JobsPerS <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestAgainst: a measurement of a running federation leaves neither jobs nor regions.
func TestAgainst(t *testing.T) {
	t.Parallel()
	o := options(t)
	s, err := startServer(o, os.Args[0], false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.awaitActive(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Against, o.Rate = s.addr, 500
	r, err := Measure(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Accepted != 160 || r.RestartS != nil || r.EtcdJobsPerS != nil || r.Idle.Cores != nil {
		t.Errorf("%+v", r)
	}
	interrupted, interrupt := context.WithCancel(t.Context())
	o.Rate = 1 // the rate is so low that the interruption comes before the last submit
	o.Progress = func(text string) {
		if strings.Contains(text, "decided") {
			interrupt()
		}
	}
	if _, err := Measure(interrupted, o); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("an interrupted measurement: %v", err)
	}
	conn, err := serve.Dial(network.Host(), s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	regions, err := nusav1.NewRegionsClient(conn).List(t.Context(), &nusav1.ListRegionsRequest{})
	if err != nil || len(regions.GetRegions()) > 0 {
		t.Errorf("regions are left: %d, %v", len(regions.GetRegions()), err)
	}
	jobs, err := nusav1.NewJobsClient(conn).List(t.Context(), &nusav1.ListJobsRequest{})
	if err != nil || len(jobs.GetJobs()) > 0 {
		t.Errorf("jobs are left: %d, %v", len(jobs.GetJobs()), err)
	}
	o.Against = "127.0.0.1:1"
	if _, err := Measure(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no global server answers there") {
		t.Errorf("no server: %v", err)
	}
}

func TestJobKeysFitInATransaction(t *testing.T) {
	const most = 128 // operations of a transaction of etcd
	if n := len(putJob(1)) * jobsPerBatch; n > most {
		t.Errorf("%d operations in a transaction, at most %d", n, most)
	}
	if !slices.IsSorted([]int{jobsPerCall, jobsPerBatch}) {
		t.Error("a batch is less than a call")
	}
}
