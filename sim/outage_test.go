package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// behaving returns a job file of one instance with a behaviour (SIM_*) and further lines
// for the job, its group and its task.
func behaving(name, kind, env, group, task string) string {
	return fmt.Sprintf(`
name: %s
type: %s
groups:
  web:
    %s
    tasks:
      main:
        driver: process
        config: {command: work}
        env: {%s}
        resources: {cpu: 100m, memory: 64MiB}
        %s
`, name, kind, group, env, task)
}

// only returns the single allocation that a region ever made for a job.
func only(ctx context.Context, f *sim.Federation, region, name string) (*nusav1.Allocation, error) {
	list, err := f.Allocations(ctx, region)
	if err != nil {
		return nil, err
	}
	var out *nusav1.Allocation
	for _, a := range list {
		if a.GetJob() != name {
			continue
		}
		if out != nil {
			return nil, fmt.Errorf("%s has the allocations %s and %s", name, out.GetId(), a.GetId())
		}
		out = a
	}
	if out == nil {
		return nil, fmt.Errorf("%s has no allocation", name)
	}
	return out, nil
}

// follow collects the events of a server from now on.
func follow(t *testing.T, server grpc.ClientConnInterface, req *nusav1.WatchEventsRequest) (received func() []*nusav1.Event) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := nusav1.NewEventsClient(server).Watch(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan *nusav1.Event, 4096)
	go func() {
		defer close(events)
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			events <- ev
		}
	}()
	return func() (out []*nusav1.Event) {
		cancel()
		for ev := range events {
			out = append(out, ev)
		}
		return out
	}
}

// inOrder checks the history of a restarted task: each run has started, ended and scheduled the
// next run once, in order and without a gap. The task counts the events that its bounded history
// dropped from the front.
func inOrder(task *nusav1.TaskState, code int32) error {
	dropped := int(task.GetEventsDropped())
	for i, ev := range task.GetEvents() {
		n := dropped + i // number of the event since the task began; 0 = the first
		run := n/3 + 1
		want := []string{fmt.Sprintf("started run %d", run), fmt.Sprintf("ended exit code %d", code), fmt.Sprintf("restarting restart %d of ", run)}[n%3]
		if got := ev.GetType() + " " + ev.GetMessage(); got != want && !(n%3 == 2 && strings.HasPrefix(got, want)) {
			return fmt.Errorf("event %d is %q, want %q, of %v", n, got, want, task)
		}
		if i > 0 && ev.GetTime().AsTime().Before(task.GetEvents()[i-1].GetTime().AsTime()) {
			return fmt.Errorf("event %d comes before its forerunner: %v", n, task)
		}
	}
	// The latest event is about the latest run.
	if all, runs := dropped+len(task.GetEvents()), int(task.GetRun()); all < 3*runs-2 || all > 3*runs {
		return fmt.Errorf("%d events for %d runs: %v", all, runs, task)
	}
	return nil
}

// TestUpperTiersGoneForAnHour: the global tier and the region's servers are down for an hour. The
// agents keep their tasks running, restart ended tasks by their policy, and give up when the policy
// allows no more restarts. They report all of this, once, when the tiers are back. No task is
// started that should not run, and a task's history stays bounded and counts dropped events.
func TestUpperTiersGoneForAnHour(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Disk: true}, func(t *testing.T, f *sim.Federation) {
		once := "reschedule: {attempts: 0}"
		f.Submit(behaving("steady", "service", "", "count: 4", ""))
		f.Submit(behaving("flaps", "service", "SIM_RUN_TIME: 4s, SIM_EXIT_CODE: 7", "", "restart: {attempts: 1000, window: 2h, delay: 1s}"))
		f.Submit(behaving("slow", "service", "SIM_RUN_TIME: 14m, SIM_EXIT_CODE: 8", "", "restart: {attempts: 5, window: 2h, delay: 10s}"))
		f.Submit(behaving("sums", "batch", "SIM_RUN_TIME: 30m", "", ""))
		f.Submit(behaving("ends", "service", "SIM_RUN_TIME: 10m, SIM_EXIT_CODE: 3", once, "restart: {attempts: 2, window: 2h, delay: 1s}"))
		f.Submit(behaving("fails", "batch", "SIM_RUN_TIME: 10m, SIM_EXIT_CODE: 4", once, "restart: {attempts: 0}"))
		f.Submit(behaving("moves", "service", "SIM_RUN_TIME: 20m, SIM_EXIT_CODE: 5", "reschedule: {attempts: 3}", "restart: {attempts: 1, window: 2h, delay: 1s}"))
		awaitRunsOnce(f, 10*time.Second, "steady", 4)
		for _, name := range []string{"slow", "sums", "ends", "fails", "moves"} {
			awaitRunsOnce(f, 10*time.Second, name, 1)
		}
		before, err := f.Allocations(t.Context(), "alpha")
		if err != nil {
			t.Fatal(err)
		}

		f.Kill("global-1")
		f.Kill("alpha-1")
		time.Sleep(time.Hour)
		if n := f.Begun()[sim.Instance{Job: "flaps", Group: "web"}]; n < 700 {
			t.Errorf("alone, the agent has begun flaps %d times", n)
		}
		// The agents report only when the servers are back.
		agents := f.RegionIPs("alpha")[1:]
		heal := f.Cut(agents, []string{f.ServerIP("alpha", 1)})
		f.StartServer("alpha", 1)
		f.Master("alpha")
		events := follow(t, f.Server("alpha", 1), &nusav1.WatchEventsRequest{Instances: true})
		heal()
		f.StartGlobal(1)
		f.AwaitRegions()
		time.Sleep(time.Minute)

		for _, a := range before {
			now, err := only(t.Context(), f, "alpha", a.GetJob())
			if a.GetJob() == "steady" || a.GetJob() == "moves" {
				continue
			}
			if err != nil || now.GetId() != a.GetId() {
				t.Errorf("%s was %s, is %s, %v", a.GetJob(), a.GetId(), now.GetId(), err)
			}
		}
		checkEnds(t, f)
		checkEvents(t, events())
	})
}

// checkEnds compares the end of each job, in the region and in the global tier, with the
// tasks that really started.
func checkEnds(t *testing.T, f *sim.Federation) {
	t.Helper()
	const (
		running  = nusav1.AllocState_ALLOC_STATE_RUNNING
		complete = nusav1.AllocState_ALLOC_STATE_COMPLETE
		failed   = nusav1.AllocState_ALLOC_STATE_FAILED
	)
	list, err := f.Allocations(t.Context(), "alpha")
	if err != nil {
		t.Fatal(err)
	}
	begun := f.Begun()
	for _, want := range []struct {
		job      string
		allocs   int
		first    nusav1.AllocState
		runs     int32 // of the first allocation; 0 = many
		code     int32
		reason   nusav1.Reason
		jobState nusav1.JobState
	}{
		{"steady", 4, running, 1, 0, 0, nusav1.JobState_JOB_STATE_RUNNING},
		{"flaps", 1, running, 0, 7, 0, nusav1.JobState_JOB_STATE_UNSPECIFIED},
		{"slow", 1, running, 5, 8, 0, nusav1.JobState_JOB_STATE_RUNNING},
		{"sums", 1, complete, 1, 0, 0, nusav1.JobState_JOB_STATE_COMPLETE},
		{"ends", 1, failed, 3, 3, nusav1.Reason_REASON_RESTARTS_EXHAUSTED, nusav1.JobState_JOB_STATE_FAILED},
		{"fails", 1, failed, 1, 4, nusav1.Reason_REASON_EXITED, nusav1.JobState_JOB_STATE_FAILED},
		{"moves", 2, failed, 2, 5, nusav1.Reason_REASON_RESTARTS_EXHAUSTED, nusav1.JobState_JOB_STATE_RUNNING},
	} {
		var allocs []*nusav1.Allocation
		runs := 0
		for _, a := range list {
			if a.GetJob() == want.job {
				allocs = append(allocs, a)
				runs += int(a.GetTasks()["main"].GetRun())
			}
		}
		if len(allocs) != want.allocs {
			t.Errorf("%s has %d allocations, want %d: %v", want.job, len(allocs), want.allocs, allocs)
			continue
		}
		a, really := allocs[0], 0
		for i, n := range begun {
			if i.Job == want.job {
				really += n
			}
		}
		task := a.GetTasks()["main"]
		if runs != really {
			t.Errorf("%s: the region knows of %d runs, %d were begun: %v", want.job, runs, really, allocs)
		}
		if a.GetState() != want.first || a.GetReason() != want.reason || want.runs > 0 && task.GetRun() != want.runs || task.GetRestarts() != task.GetRun()-1 {
			t.Errorf("%s: %v", want.job, a)
		}
		if a.GetState() != running && task.GetExitCode() != want.code || a.GetState() == complete && task.GetFinished() == nil {
			t.Errorf("%s ended with %d: %v", want.job, task.GetExitCode(), task)
		}
		if err := inOrder(task, want.code); err != nil {
			t.Errorf("%s: %v", want.job, err)
		}
		if n := proto.Size(a); n > 4<<10 {
			t.Errorf("%s takes %d bytes", want.job, n)
		}
		if n := len(task.GetEvents()); n > 10 || want.job == "flaps" && task.GetEventsDropped() < 1000 {
			t.Errorf("%s: %d events, %d dropped", want.job, n, task.GetEventsDropped())
		}
		j, err := f.Job(t.Context(), want.job)
		if err != nil {
			t.Fatal(err)
		}
		if want.jobState != 0 && j.GetStatus().GetState() != want.jobState {
			t.Errorf("%s is %v, want %v", want.job, j.GetStatus(), want.jobState)
		}
	}
}

// checkEvents checks that each change of the hour was reported once: one event for the latest state
// of an instance, not one for each restart.
func checkEvents(t *testing.T, events []*nusav1.Event) {
	t.Helper()
	count := map[string]int{}
	restarts := 0
	for _, ev := range events {
		if !strings.HasPrefix(ev.GetType(), "instance.") {
			continue
		}
		_, name, _ := strings.Cut(ev.GetSubject(), "/")
		count[name+" "+strings.TrimPrefix(ev.GetType(), "instance.")]++
		if name == "flaps" {
			// One event names all restarts of the hour, and no other event names them again. Earlier
			// events may name a few.
			from, to := 0, 0
			if _, after, ok := strings.Cut(ev.GetMessage(), "restarts "); ok {
				_, _ = fmt.Sscanf(after, "%d to %d", &from, &to)
			} else if _, after, ok := strings.Cut(ev.GetMessage(), "restart "); ok {
				_, _ = fmt.Sscanf(after, "%d", &to)
				from = to
			}
			if to < 700 || restarts == 0 && (from < 1 || from > 10) || restarts > 0 && from != restarts+1 {
				t.Errorf("flaps, after restart %d: %v", restarts, ev)
			}
			restarts = to
		}
	}
	for key, want := range map[string]int{
		"sums complete": 1, "ends failed": 1, "fails failed": 1, "moves failed": 1, "moves running": 1, "slow restarted": 1,
		"steady running": 0, "steady restarted": 0, "sums running": 0,
	} {
		if count[key] != want {
			t.Errorf("%s was reported %d times, want %d: %v", key, count[key], want, count)
		}
	}
}
