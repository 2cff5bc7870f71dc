package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// letters makes calls about dead letters to the active global server.
type letters struct{ schedules }

func (l letters) do(call func(context.Context, nusav1.DeadLettersClient) error) error {
	return l.call(func(ctx context.Context, c *grpc.ClientConn) error { return call(ctx, nusav1.NewDeadLettersClient(c)) })
}

// list returns all dead letters of a job, page by page.
func (l letters) list(job string) (out []*nusav1.DeadLetter) {
	l.t.Helper()
	for token := ""; ; {
		err := l.do(func(ctx context.Context, c nusav1.DeadLettersClient) error {
			resp, err := c.List(ctx, &nusav1.ListDeadLettersRequest{Job: job, Limit: 7, PageToken: token})
			out, token = append(out, resp.GetDeadLetters()...), resp.GetNextPageToken()
			return err
		})
		if err != nil {
			l.t.Fatal(err)
		}
		if token == "" {
			return out
		}
	}
}

func (l letters) get(id string) (out *nusav1.DeadLetter) {
	l.t.Helper()
	if err := l.do(func(ctx context.Context, c nusav1.DeadLettersClient) (err error) {
		out, err = c.Get(ctx, &nusav1.GetDeadLetterRequest{Id: id, Spec: true})
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	return out
}

// awaitFailed waits until a job has failed.
func (l letters) awaitFailed(name string) {
	l.t.Helper()
	l.f.Eventually(10*time.Minute, name+" has failed", func(ctx context.Context) error {
		j, err := l.f.Job(ctx, name)
		if err == nil && j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_FAILED {
			err = fmt.Errorf("%v", j.GetStatus())
		}
		return err
	})
}

// created returns how many dead letters the events tell, and how many before the end of the job frames.
func (l letters) created() (n, before int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
	defer cancel()
	_ = l.f.OnGlobal(func(c *grpc.ClientConn) error {
		stream, err := nusav1.NewEventsClient(c).Watch(ctx, &nusav1.WatchEventsRequest{Token: "0", Durable: true, Types: []string{"deadletter.created", "job.failed"}})
		for err == nil {
			var e *nusav1.Event
			e, err = stream.Recv()
			switch {
			case e.GetType() == "deadletter.created":
				n++
			case e.GetSubject() == "default/frames":
				before = n
			}
		}
		return nil
	})
	return n, before
}

// TestDeadLetters: each instance that fails for good leaves one dead letter, also over elections. A dropped one does
// not come back, and a redrive runs the instance once more.
func TestDeadLetters(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Agents: 2, Globals: 3}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		l := letters{schedules{t, f}}
		const count = 70
		f.Submit(fmt.Sprintf(`
name: frames
type: batch
regions: {divide: even}
groups:
  frame:
    count: %d
    reschedule: {attempts: 1, backoff: {from: 1s, to: 1s}}
    tasks:
      main: {driver: process, config: {command: sum, args: ["${NUSA_INDEX}"]}, restart: {attempts: 0}, env: {SIM_RUN_TIME: 5s, SIM_EXIT_CODE: '3', SIM_STDOUT: "half way\nno more\n"}, resources: {cpu: 500m, memory: 64MiB}}
`, count))
		time.Sleep(8 * time.Second)
		restartActive(f)
		l.awaitFailed("frames")
		time.Sleep(time.Minute)
		all := l.list("frames")
		if _, before := l.created(); len(all) != count || before != count {
			t.Fatalf("%d dead letters, %d of them before the result of the job, want %d", len(all), before, count)
		}
		seen := map[int32]bool{}
		for _, x := range all {
			attempts := x.GetAttempts()
			if seen[x.GetIndex()] || x.GetFailure().GetCategory() != nusav1.FailureCategory_FAILURE_CATEGORY_APP || x.GetFailure().GetExitCode() != 3 ||
				x.GetAttemptCount() < 2 || len(attempts) < 2 || attempts[0].GetNode() == "" || attempts[1].GetRegion() != x.GetRegion() ||
				attempts[0].GetFailure().GetExitCode() != 3 || !attempts[1].GetStarted().AsTime().Before(x.GetFailed().AsTime()) || !x.GetHasSpec() {
				t.Errorf("dead letter %v", x)
			}
			seen[x.GetIndex()] = true
		}
		if got := l.get(all[3].GetId()[:6]).GetLog(); got != "half way\nno more" {
			t.Errorf("the log is %q", got)
		}

		for range 2 { // what is dropped stays dropped
			if err := l.do(func(ctx context.Context, c nusav1.DeadLettersClient) error {
				_, err := c.Drop(ctx, &nusav1.DropDeadLetterRequest{Id: l.list("frames")[0].GetId()})
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		restartActive(f)
		time.Sleep(time.Minute)
		if got := len(l.list("frames")); got != count-2 {
			t.Errorf("%d dead letters after the drop of two and an election, want %d", got, count-2)
		}
		l.testRedrive(l.list("frames"))
	})
}

// testRedrive redrives one of several dead letters of the job frames.
func (l letters) testRedrive(all []*nusav1.DeadLetter) {
	l.t.Helper()
	from := all[0]
	if from.GetIndex() == 0 {
		from = all[1]
	}
	redrive := func(spec *nusav1.JobSpec) (out *nusav1.DeadLetter, err error) {
		err = l.do(func(ctx context.Context, c nusav1.DeadLettersClient) error {
			out, err = c.Redrive(ctx, &nusav1.RedriveRequest{Id: from.GetId(), Spec: spec})
			return err
		})
		return out, err
	}
	spec := l.get(from.GetId()).GetSpec()
	spec.Groups["frame"].Count = nil
	spec.Groups["frame"].Tasks["main"].Env["SIM_STDOUT"] = "again"
	spec.Groups["frame"].Tasks["main"].Env["NUSA_X"] = "no"
	if _, err := redrive(spec); status.Code(err) != codes.InvalidArgument {
		l.t.Errorf("a reserved variable: %v", err)
	}
	delete(spec.Groups["frame"].Tasks["main"].Env, "NUSA_X")
	out, err := redrive(spec)
	if err != nil || out.GetState() != nusav1.DeadLetterState_DEAD_LETTER_STATE_REDRIVEN {
		l.t.Fatalf("redrive: %v, %v", out, err)
	}
	if _, err := redrive(nil); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), out.GetRedrivenAs()) {
		l.t.Errorf("a second redrive: %v", err)
	}
	l.awaitFailed(out.GetRedrivenAs())
	j, err := l.f.Job(l.t.Context(), out.GetRedrivenAs())
	if err != nil {
		l.t.Fatal(err)
	}
	task := j.GetSpec().GetGroups()["frame"].GetTasks()["main"]
	index := fmt.Sprint(from.GetIndex())
	if task.GetEnv()["NUSA_INDEX"] != index || task.GetConfig().GetFields()["args"].GetListValue().GetValues()[0].GetStringValue() != index || task.GetEnv()["SIM_STDOUT"] != "again" {
		l.t.Errorf("the task of the redrive: %v", task)
	}
	time.Sleep(time.Minute)
	again := l.list(out.GetRedrivenAs())
	if len(again) != 1 || again[0].GetRedriveOf() != from.GetId() {
		l.t.Errorf("dead letters of the redrive: %v", again)
	}
	if got, _ := l.created(); got != len(all)+3 {
		l.t.Errorf("%d events about dead letters, want %d", got, len(all)+3)
	}
}
