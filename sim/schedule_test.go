package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// schedules makes calls about the runs of a job to the active global server.
type schedules struct {
	t *testing.T
	f *sim.Federation
}

func (s schedules) call(do func(context.Context, *grpc.ClientConn) error) error {
	return s.f.OnGlobal(func(c *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
		defer cancel()
		return do(ctx, c)
	})
}

func (s schedules) submit(spec *nusav1.JobSpec) {
	s.t.Helper()
	err := s.call(func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := nusav1.NewJobsClient(c).Submit(ctx, &nusav1.SubmitRequest{Spec: spec})
		return err
	})
	if err != nil {
		s.t.Fatalf("submit: %v", err)
	}
}

func (s schedules) get(name string, next int32) (out *nusav1.ScheduleStatus, err error) {
	err = s.call(func(ctx context.Context, c *grpc.ClientConn) error {
		out, err = nusav1.NewSchedulesClient(c).Get(ctx, &nusav1.GetScheduleRequest{Job: &nusav1.JobRef{Name: name}, Next: next, Runs: 1000})
		return err
	})
	return out, err
}

func (s schedules) mustGet(name string) *nusav1.ScheduleStatus {
	s.t.Helper()
	out, err := s.get(name, 3)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// restartActive kills the active global server, and starts it again after a while.
func restartActive(f *sim.Federation) {
	i := f.Active()
	f.Kill(fmt.Sprintf("global-%d", i))
	time.Sleep(10 * time.Second)
	f.StartGlobal(i)
}

// runsEvery is a job that runs a task of some seconds at each interval.
func runsEvery(name string, every, takes time.Duration) *nusav1.JobSpec {
	return &nusav1.JobSpec{
		Name: name, Schedule: &nusav1.Schedule{Every: durationpb.New(every), History: &nusav1.RunHistory{Count: 1000}},
		Groups: map[string]*nusav1.Group{"main": {Tasks: map[string]*nusav1.Task{"main": {
			Driver: "process", Env: map[string]string{"SIM_RUN_TIME": takes.String()},
			Config: &structpb.Struct{Fields: map[string]*structpb.Value{"command": structpb.NewStringValue("x")}},
		}}}},
	}
}

// awaitOneRunEach waits until each time of a schedule since a submit has a run, and the earlier ones are
// complete. It fails at once if a time has two runs or none.
func (s schedules) awaitOneRunEach(name string, submitted time.Time, every time.Duration) {
	s.t.Helper()
	first := submitted.Truncate(every).Add(every)
	s.f.Eventually(5*time.Minute, "each time of "+name+" has a run", func(context.Context) error {
		st, err := s.get(name, 1)
		if err != nil {
			return err
		}
		runs := slices.SortedFunc(slices.Values(st.GetRuns()), func(x, y *nusav1.JobRun) int {
			return x.GetTime().AsTime().Compare(y.GetTime().AsTime())
		})
		for i, r := range runs {
			if want := first.Add(time.Duration(i) * every); !r.GetTime().AsTime().Equal(want) {
				s.t.Fatalf("run %d is of %s, want %s: %v", i, r.GetTime().AsTime(), want, runs)
			}
			if time.Since(r.GetTime().AsTime()) > time.Minute && r.GetState() != nusav1.JobRunState_JOB_RUN_STATE_COMPLETE {
				return fmt.Errorf("%v", r)
			}
		}
		if least := int(time.Since(first) / every); len(runs) < least || st.GetMissed()+st.GetSkipped() > 0 {
			return fmt.Errorf("%d of at least %d runs: %v", len(runs), least, st)
		}
		return nil
	})
}

// TestNoRunTwiceAndNoneMissedOverElections: while the active global server is killed again and again, each
// time of a schedule gets exactly one run.
func TestNoRunTwiceAndNoneMissedOverElections(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 2, Globals: 3}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		s := schedules{t, f}
		spec := runsEvery("often", 10*time.Second, 2*time.Second)
		spec.Schedule.Overlap = nusav1.Overlap_OVERLAP_ALLOW
		began := time.Now()
		s.submit(spec)
		for range 4 {
			time.Sleep(45 * time.Second)
			restartActive(f)
		}
		time.Sleep(time.Minute)
		s.awaitOneRunEach("often", began, 10*time.Second)
	})
}

// TestLifeOfASchedule: pause, resume, trigger, backfill, overlap, and the limits of the history.
func TestLifeOfASchedule(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 2}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		s := schedules{t, f}
		ref := &nusav1.JobRef{Name: "slow"}
		spec := runsEvery("slow", time.Minute, 90*time.Second)
		spec.Schedule.History = &nusav1.RunHistory{Count: 2}
		s.submit(spec)
		time.Sleep(5*time.Minute + 10*time.Second)
		st := s.mustGet("slow")
		if st.GetSkipped() == 0 || !strings.Contains(st.GetSkipReason(), "has not ended") || len(st.GetRuns()) > 3 || len(st.GetNext()) != 3 {
			t.Errorf("after five minutes: %v", st)
		}
		j, err := f.Job(t.Context(), "slow")
		if err != nil || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING || !strings.Contains(j.GetStatus().GetMessage(), "next run ") {
			t.Errorf("the job: %v, %v", j.GetStatus(), err)
		}
		do := func(call func(context.Context, nusav1.SchedulesClient) error) error {
			return s.call(func(ctx context.Context, c *grpc.ClientConn) error { return call(ctx, nusav1.NewSchedulesClient(c)) })
		}
		if err := do(func(ctx context.Context, c nusav1.SchedulesClient) error {
			_, err := c.Pause(ctx, &nusav1.PauseScheduleRequest{Job: ref, Reason: "tests"})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		st = s.mustGet("slow")
		if !st.GetPaused() || st.GetPauseReason() != "tests" || time.Since(st.GetRuns()[0].GetTime().AsTime()) < 3*time.Minute {
			t.Errorf("paused: %v", st)
		}
		var run *nusav1.JobRun
		trigger := func(ctx context.Context, c nusav1.SchedulesClient) (err error) {
			run, err = c.Trigger(ctx, &nusav1.TriggerScheduleRequest{Job: ref})
			return err
		}
		if err := do(trigger); err != nil || !strings.HasSuffix(run.GetName(), "-t") {
			t.Fatalf("trigger: %v, %v", run, err)
		}
		if err := do(trigger); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has not ended") {
			t.Errorf("a second trigger: %v", err)
		}
		if err := do(func(ctx context.Context, c nusav1.SchedulesClient) error {
			_, err := c.Resume(ctx, &nusav1.ResumeScheduleRequest{Job: ref})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		backfill := func(from, to time.Duration) (runs int32, err error) {
			now := time.Now()
			err = do(func(ctx context.Context, c nusav1.SchedulesClient) error {
				out, err := c.Backfill(ctx, &nusav1.BackfillScheduleRequest{Job: ref, From: timestamppb.New(now.Add(-from)), To: timestamppb.New(now.Add(-to))})
				runs = out.GetRuns()
				return err
			})
			return runs, err
		}
		if _, err := backfill(48*time.Hour, time.Hour); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "more than 1000 times") {
			t.Errorf("a long backfill: %v", err)
		}
		if _, err := backfill(time.Hour, -time.Hour); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a backfill of the future: %v", err)
		}
		if n, err := backfill(62*time.Minute, time.Hour); err != nil || n != 2 {
			t.Errorf("backfill: %d, %v", n, err)
		}
		f.Eventually(20*time.Minute, "the backfill ends", func(context.Context) error {
			if left := s.mustGet("slow").GetBackfill(); left > 0 {
				return fmt.Errorf("%d left", left)
			}
			return nil
		})
		time.Sleep(4 * time.Minute)
		if runs := s.mustGet("slow").GetRuns(); len(runs) > 3 {
			t.Errorf("the history has %d runs: %v", len(runs), runs)
		}
	})
}

// TestDispatch: each dispatch is a run with its values, and a repeated key returns the same run, also after
// an election.
func TestDispatch(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 1, Globals: 3}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		s := schedules{t, f}
		spec := runsEvery("resize", time.Minute, time.Second)
		spec.Schedule = nil
		spec.Parameterized = &nusav1.Parameterized{Payload: nusav1.Payload_PAYLOAD_REQUIRED, MetaRequired: []string{"who"}, MetaOptional: []string{"size"}}
		spec.Groups["main"].Tasks["main"].Env["OWNER"] = "${NUSA_META_who}/${NUSA_META_size}"
		s.submit(spec)
		dispatch := func(req *nusav1.DispatchJobRequest) (run *nusav1.JobRun, err error) {
			req = proto.CloneOf(req)
			req.Job = &nusav1.JobRef{Name: "resize"}
			err = s.call(func(ctx context.Context, c *grpc.ClientConn) error {
				run, err = nusav1.NewSchedulesClient(c).Dispatch(ctx, req)
				return err
			})
			return run, err
		}
		good := &nusav1.DispatchJobRequest{Payload: []byte("a scan"), Meta: map[string]string{"who": "jane"}, IdempotencyKey: "order-7"}
		first, err := dispatch(good)
		if err != nil {
			t.Fatal(err)
		}
		j, err := f.Job(t.Context(), first.GetName())
		task := j.GetSpec().GetGroups()["main"].GetTasks()["main"]
		if err != nil || task.GetEnv()["OWNER"] != "jane/" || task.GetEnv()["NUSA_META_who"] != "jane" || task.GetTemplates()[0].GetText() != "a scan" || j.GetSpec().GetParameterized() != nil {
			t.Errorf("the run: %v, %v", j, err)
		}
		restartActive(f)
		if again, err := dispatch(good); err != nil || again.GetName() != first.GetName() {
			t.Errorf("the key again: %v, %v", again, err)
		}
		other := proto.CloneOf(good)
		other.Payload = []byte("another scan")
		if _, err := dispatch(other); status.Code(err) != codes.AlreadyExists {
			t.Errorf("the key for another dispatch: %v", err)
		}
		for why, change := range map[string]func(*nusav1.DispatchJobRequest){
			"at most 65536 are allowed": func(r *nusav1.DispatchJobRequest) { r.Payload = make([]byte, 65537) },
			"is missing":                func(r *nusav1.DispatchJobRequest) { r.Payload = nil },
			"is not UTF-8":              func(r *nusav1.DispatchJobRequest) { r.Payload = []byte{0xff} },
			"would replace":             func(r *nusav1.DispatchJobRequest) { r.Payload = []byte("${NUSA_JOB}") },
			"who is missing":            func(r *nusav1.DispatchJobRequest) { r.Meta = nil },
			"no value \"colour\"":       func(r *nusav1.DispatchJobRequest) { r.Meta["colour"] = "red" },
			"size has 5000 bytes":       func(r *nusav1.DispatchJobRequest) { r.Meta["size"] = strings.Repeat("x", 5000) },
		} {
			bad := proto.CloneOf(good)
			bad.IdempotencyKey = ""
			change(bad)
			if _, err := dispatch(bad); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), why) {
				t.Errorf("got %v, want %q", err, why)
			}
		}
		second := proto.CloneOf(good)
		second.IdempotencyKey = ""
		if _, err := dispatch(second); err != nil {
			t.Fatal(err)
		}
		f.Eventually(time.Minute, "both runs are complete", func(context.Context) error {
			runs := s.mustGet("resize").GetRuns()
			if len(runs) != 2 {
				return fmt.Errorf("%d runs", len(runs))
			}
			for _, r := range runs {
				if r.GetState() != nusav1.JobRunState_JOB_RUN_STATE_COMPLETE {
					return fmt.Errorf("%v", r)
				}
			}
			return nil
		})
	})
}
