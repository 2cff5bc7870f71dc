package client

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// scheduleServer has the schedule "nightly".
type scheduleServer struct {
	nusav1.UnimplementedSchedulesServer
	*notes
}

func (s scheduleServer) Get(_ context.Context, r *nusav1.GetScheduleRequest) (*nusav1.ScheduleStatus, error) {
	if r.GetJob().GetName() == "resize" { // a parameterized job
		return &nusav1.ScheduleStatus{Job: "default/resize"}, nil
	}
	if r.GetJob().GetName() != "nightly" {
		return nil, status.Errorf(codes.FailedPrecondition, "job default/%s has neither schedule nor parameterized: it begins no runs", r.GetJob().GetName())
	}
	at := time.Date(2026, 11, 28, 1, 30, 0, 0, time.UTC)
	out := &nusav1.ScheduleStatus{
		Job: "default/nightly", Paused: true, PauseReason: "3 runs in a row have failed, the last one is nightly.20261127-013000", Failures: 3,
		Skipped: 2, SkipReason: "run nightly.20261126-013000 has not ended", Missed: 4, Backfill: 5, RunCount: 12,
		Waiting: []*timestamppb.Timestamp{timestamppb.New(at)}, TimeZone: "Europe/Berlin",
	}
	for i := range r.GetNext() {
		out.Next = append(out.Next, timestamppb.New(at.AddDate(0, 0, int(i))))
	}
	for i := range 12 {
		day := at.AddDate(0, 0, -1-i)
		run := &nusav1.JobRun{
			Name: "nightly." + day.Format("20060102-150405"), Time: timestamppb.New(day), Trigger: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_SCHEDULE,
			State: nusav1.JobRunState_JOB_RUN_STATE_FAILED, Began: timestamppb.New(day), Ended: timestamppb.New(day.Add(90 * time.Second)), Message: "main[0] ended with 7",
		}
		out.Runs = append(out.Runs, run)
	}
	return out, nil
}

func (s scheduleServer) List(_ context.Context, r *nusav1.ListSchedulesRequest) (*nusav1.ListSchedulesResponse, error) {
	if r.GetPageToken() == "" {
		return &nusav1.ListSchedulesResponse{Schedules: []*nusav1.ScheduleStatus{{Job: "default/hourly", TimeZone: "Asia/Tokyo", Next: []*timestamppb.Timestamp{timestamppb.New(time.Date(2026, 11, 28, 1, 0, 0, 0, time.UTC))}}}, NextPageToken: "default/hourly"}, nil
	}
	return &nusav1.ListSchedulesResponse{Schedules: []*nusav1.ScheduleStatus{{Job: "default/nightly", Paused: true, PauseReason: "holidays"}}}, nil
}

func (s scheduleServer) Pause(_ context.Context, r *nusav1.PauseScheduleRequest) (*nusav1.ScheduleStatus, error) {
	s.note(r)
	return &nusav1.ScheduleStatus{Paused: true, PauseReason: r.GetReason()}, nil
}

func (s scheduleServer) Resume(context.Context, *nusav1.ResumeScheduleRequest) (*nusav1.ScheduleStatus, error) {
	return &nusav1.ScheduleStatus{Next: []*timestamppb.Timestamp{timestamppb.New(time.Date(2026, 11, 28, 1, 30, 0, 0, time.UTC))}}, nil
}

func (s scheduleServer) Trigger(context.Context, *nusav1.TriggerScheduleRequest) (*nusav1.JobRun, error) {
	return &nusav1.JobRun{Name: "nightly.20261128-101500-t"}, nil
}

func (s scheduleServer) Backfill(_ context.Context, r *nusav1.BackfillScheduleRequest) (*nusav1.BackfillScheduleResponse, error) {
	s.note(r)
	return &nusav1.BackfillScheduleResponse{Runs: 7}, nil
}

func (s scheduleServer) Dispatch(_ context.Context, r *nusav1.DispatchJobRequest) (*nusav1.JobRun, error) {
	s.note(r)
	return &nusav1.JobRun{Name: "resize.k0123456789abcdef"}, nil
}

// TestScheduleCommands: what each command prints and asks for, and that it says what is wrong before it asks.
func TestScheduleCommands(t *testing.T) {
	f := newFake(t)
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 64<<10+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line, stdin, want string
		code              int
	}{
		{"job schedule show nightly", "", "Paused: 3 runs in a row have failed", 0},
		{"job schedule show nightly", "", "and 2 earlier ones", 0},
		{"job schedule show nightly", "", "Missed 4, more than catch_up late", 0},
		{"job schedule list", "", "default/hourly   2026-11-28 10:00 JST  -", 0},
		{"job schedule list --paused", "", "default/nightly  paused                -       holidays", 0},
		{"job schedule list -o name", "", "default/nightly\n", 0},
		{"job schedule next nightly 2 3", "", "\"3\" is one argument too many; usage: nusa job schedule next JOB [COUNT]", 1},
		{"job revert nightly 3", "", "\"3\" is one argument too many; the version is a flag: nusa job revert nightly --to 3", 1},
		{"job tag nightly 1 good", "", "\"good\" is one argument too many; usage: nusa job tag JOB [TAG]", 1},
		{"job diff nightly 1 2 3", "", "\"3\" is one argument too many; usage: nusa job diff JOB [FROM] [TO]", 1},
		{"job schedule show nightly -o json", "", `"run_count": 12`, 0},
		{"job schedule show web", "", "it begins no runs", 1},
		{"job schedule next nightly 2", "", "2026-11-28 02:30:00 CET, 01:30:00 UTC\n2026-11-29 02:30:00 CET, 01:30:00 UTC\n", 0},
		{"job schedule next resize", "", "job default/resize has no schedule, so it has no next time: nusa job dispatch resize begins a run", 1},
		{"job schedule next nightly 101", "", "COUNT must be 1..100", 1},
		{"job schedule pause nightly --reason holidays", "", "is paused; resume it with", 0},
		{"job schedule resume nightly", "", "next run 2026-11-28 01:30:00 UTC", 0},
		{"job schedule trigger nightly", "", "job status nightly.20261128-101500-t", 0},
		{"job schedule backfill nightly --from 2026-11-01 --to 2026-11-08T12:00:00+01:00", "", "7 runs to begin, one after another", 0},
		{"job schedule backfill nightly --from yesterday --to 2026-11-08", "", "--from must be a time such as", 1},
		{"job schedule backfill nightly --to 2026-11-08", "", "--from is missing: a time such as", 1},
		{"job dispatch resize --payload - --meta who=jane,size=2 --idempotency-key order-7", "hello", "run default/resize.k0123456789abcdef has begun", 0},
		{"job dispatch resize -o name", "", "default/resize.k0123456789abcdef\n", 0},
		{"job dispatch resize --payload " + large, "", "more than 64KiB", 1},
		{"job dispatch resize --payload nosuchfile", "", "no such file", 1},
		{"job dispatch resize --meta who", "", "is not KEY=VALUE", 1},
		{"job dispatch a..b", "", "is not a job", 1},
	} {
		out, errOut, code := f.run(t.Context(), c.stdin, append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: code %d\n%s%s", c.line, code, out, errOut)
		}
		if !strings.Contains(c.line, "json") {
			for line := range strings.Lines(out) {
				if len([]rune(strings.TrimRight(line, "\n"))) > 80 && !strings.Contains(line, ": ") {
					t.Errorf("%s: a line of more than 80 columns: %s", c.line, line)
				}
			}
		}
	}
	var dispatched, filled, paused bool
	for _, m := range f.taken() {
		switch r := m.(type) {
		case *nusav1.DispatchJobRequest:
			dispatched = dispatched || string(r.GetPayload()) == "hello" && r.GetMeta()["who"] == "jane" && r.GetMeta()["size"] == "2" && r.GetIdempotencyKey() == "order-7"
		case *nusav1.BackfillScheduleRequest:
			filled = r.GetTo().AsTime().Equal(time.Date(2026, 11, 8, 11, 0, 0, 0, time.UTC))
		case *nusav1.PauseScheduleRequest:
			paused = r.GetReason() == "holidays"
		}
	}
	if !dispatched || !filled || !paused {
		t.Errorf("what was asked: dispatch %v, backfill %v, pause %v", dispatched, filled, paused)
	}
}
