package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// timesOf returns the minutes after a time at which the runs of a schedule were due, in order, with the first
// letter of a state other than complete.
func timesOf(st *nusav1.ScheduleStatus, zero time.Time) string {
	var out []string
	for _, r := range slices.Backward(st.GetRuns()) {
		text := fmt.Sprint(int(r.GetTime().AsTime().Sub(zero) / time.Minute))
		switch r.GetState() {
		case nusav1.JobRunState_JOB_RUN_STATE_ACTIVE:
			text += "a"
		case nusav1.JobRunState_JOB_RUN_STATE_STOPPED:
			text += "s"
		case nusav1.JobRunState_JOB_RUN_STATE_FAILED:
			text += "f"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestOverlapRules: a run takes two and a half minutes, and the next one is due after one. The active
// server is killed in the middle.
func TestOverlapRules(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 2, Globals: 3}, func(t *testing.T, f *sim.Federation) {
		s := schedules{t, f}
		zero := time.Now().Truncate(time.Minute)
		if time.Since(zero) > 30*time.Second {
			time.Sleep(time.Until(zero.Add(time.Minute)))
			zero = zero.Add(time.Minute)
		}
		for rule := range nusav1.Overlap_name {
			if rule == 0 {
				continue
			}
			spec := runsEvery(strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(nusav1.Overlap(rule).String(), "OVERLAP_")), "_", "-"), time.Minute, 150*time.Second)
			spec.Schedule.Overlap = nusav1.Overlap(rule)
			s.submit(spec)
		}
		time.Sleep(time.Until(zero.Add(150*time.Second + 10*time.Second)))
		restartActive(f) // ten seconds
		time.Sleep(time.Until(zero.Add(5*time.Minute + 20*time.Second)))
		for _, c := range []struct {
			job, runs string
			waiting   int
			skipped   int64
		}{
			{"skip", "1 4a", 0, 3},
			{"buffer-one", "1 2a", 1, 2},
			{"buffer-all", "1 2a", 3, 0},
			{"cancel", "1s 2s 3s 4s 5a", 0, 0},
			{"terminate", "1s 2s 3s 4s 5a", 0, 0},
			{"allow", "1 2 3a 4a 5a", 0, 0},
		} {
			st := s.mustGet(c.job)
			if got := timesOf(st, zero); got != c.runs || len(st.GetWaiting()) != c.waiting || st.GetSkipped() != c.skipped || st.GetMissed() != 0 {
				t.Errorf("%s: runs %q, %d wait, %d skipped, want %q, %d, %d", c.job, got, len(st.GetWaiting()), st.GetSkipped(), c.runs, c.waiting, c.skipped)
			}
		}
	})
}

// TestCatchUp: after ten minutes without a global server, the runs of the last catch_up begin, and the
// earlier ones are missed.
func TestCatchUp(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 2}, func(t *testing.T, f *sim.Federation) {
		s := schedules{t, f}
		spec := runsEvery("late", time.Minute, time.Second)
		spec.Schedule.Overlap, spec.Schedule.CatchUp = nusav1.Overlap_OVERLAP_ALLOW, durationpb.New(4*time.Minute)
		zero := time.Now().Truncate(time.Minute)
		s.submit(spec)
		time.Sleep(time.Until(zero.Add(2*time.Minute + 30*time.Second)))
		f.Kill("global-1")
		time.Sleep(time.Until(zero.Add(12*time.Minute + 30*time.Second)))
		f.StartGlobal(1)
		time.Sleep(time.Until(zero.Add(14*time.Minute + 30*time.Second)))
		st := s.mustGet("late")
		if got, want := timesOf(st, zero), "1 2 9 10 11 12 13 14"; got != want || st.GetMissed() != 6 || st.GetSkipped() != 0 {
			t.Errorf("runs %q, %d missed, want %q and 6", got, st.GetMissed(), want)
		}
	})
}

// TestTimesAndFailuresOfASchedule: start, end and exclusions, and a pause after failed runs.
func TestTimesAndFailuresOfASchedule(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 2}, func(t *testing.T, f *sim.Federation) {
		s := schedules{t, f}
		zero := time.Now().Truncate(time.Minute)
		at := func(minutes time.Duration) string {
			return zero.Add(minutes * time.Minute).UTC().Format(time.RFC3339)
		}
		bounded := runsEvery("bounded", time.Minute, time.Second)
		bounded.Schedule.Start, bounded.Schedule.End = at(2), at(7)
		bounded.Schedule.Exclude = []*nusav1.Exclusion{{From: at(4), To: at(5)}}
		s.submit(bounded)
		fails := runsEvery("fails", time.Minute, time.Second)
		fails.Schedule.PauseAfterFailures, fails.Schedule.TimeZone = 2, "Asia/Tokyo"
		fails.Groups["main"].Reschedule = &nusav1.Reschedule{Attempts: proto.Int32(0)}
		task := fails.Groups["main"].Tasks["main"]
		task.Env["SIM_EXIT_CODE"], task.Restart = "7", &nusav1.Restart{Attempts: proto.Int32(0)}
		s.submit(fails)
		time.Sleep(time.Until(zero.Add(9*time.Minute + 30*time.Second)))
		if got, want := timesOf(s.mustGet("bounded"), zero), "2 3 6 7"; got != want {
			t.Errorf("bounded: runs %q, want %q", got, want)
		}
		st := s.mustGet("fails")
		if got, want := timesOf(st, zero), "1f 2f"; got != want || !st.GetPaused() || !strings.Contains(st.GetPauseReason(), "2 runs in a row have failed") {
			t.Errorf("fails: runs %q, want %q: %v", got, want, st)
		}
		list := func(req *nusav1.ListSchedulesRequest) (found []string, next string) {
			err := s.call(func(ctx context.Context, c *grpc.ClientConn) error {
				out, err := nusav1.NewSchedulesClient(c).List(ctx, req)
				for _, st := range out.GetSchedules() {
					found = append(found, fmt.Sprintf("%s %s %d", st.GetJob(), st.GetTimeZone(), len(st.GetRuns())))
				}
				next = out.GetNextPageToken()
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return found, next
		}
		if got, _ := list(&nusav1.ListSchedulesRequest{}); fmt.Sprint(got) != "[default/bounded  4 default/fails Asia/Tokyo 2]" {
			t.Errorf("the list: %q", got)
		}
		if got, _ := list(&nusav1.ListSchedulesRequest{Paused: true}); fmt.Sprint(got) != "[default/fails Asia/Tokyo 2]" {
			t.Errorf("the paused ones: %q", got)
		}
		first, token := list(&nusav1.ListSchedulesRequest{Limit: 1})
		if second, end := list(&nusav1.ListSchedulesRequest{Limit: 1, PageToken: token}); len(first) != 1 || fmt.Sprint(second) != "[default/fails Asia/Tokyo 2]" || end != "" {
			t.Errorf("pages: %q, %q, then %q", first, second, end)
		}
		if got, _ := list(&nusav1.ListSchedulesRequest{Namespace: "other"}); len(got) != 0 {
			t.Errorf("another namespace: %q", got)
		}
		err := s.call(func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := nusav1.NewSchedulesClient(c).Resume(ctx, &nusav1.ResumeScheduleRequest{Job: &nusav1.JobRef{Name: "fails"}})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(70 * time.Second)
		if got, want := timesOf(s.mustGet("fails"), zero), "1f 2f 10f"; got != want {
			t.Errorf("resumed: runs %q, want %q", got, want)
		}
	})
}
