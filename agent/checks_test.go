package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// serveWord serves HTTP from the test's executable. It responds with 200 while the file
// contains "well". Otherwise it responds with 503 and the content of the file.
func serveWord(addr, file string) int {
	err := http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		word, err := os.ReadFile(file)
		if err != nil {
			word = []byte("warming up")
		}
		if string(word) != "well" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(word)
	}))
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// withCheck gives a check and a number of restarts to the task main of an order.
func withCheck(k *nusav1.Check, port, restarts int32) func(*nusav1.AllocOrder, *nusav1.Group) {
	return func(o *nusav1.AllocOrder, g *nusav1.Group) {
		if port > 0 {
			o.Allocation.Ports = map[string]int32{"http": port}
		}
		g.Ports = map[string]*nusav1.Port{"http": {}}
		g.Tasks["main"].Check = k
		g.Tasks["main"].Restart = &nusav1.Restart{Attempts: proto.Int32(restarts), Delay: durationMillis(10)}
	}
}

const (
	waiting   = nusav1.HealthState_HEALTH_STATE_WAITING
	healthy   = nusav1.HealthState_HEALTH_STATE_HEALTHY
	unhealthy = nusav1.HealthState_HEALTH_STATE_UNHEALTHY
)

// TestChecksDecideRunningAndRestart follows a real service. The service is running after
// its check has passed, also after a restart of the agent. It restarts if it becomes
// unhealthy. It fails if it becomes unhealthy too often.
func TestChecksDecideRunningAndRestart(t *testing.T) {
	m, dir, port := newMaster(t), t.TempDir(), int32(freeport.Reserve(t, 1))
	word := filepath.Join(dir, "word")
	say := func(s string) {
		t.Helper()
		// The server never reads an empty file.
		if err := errors.Join(os.WriteFile(word+".new", []byte(s), 0o600), os.Rename(word+".new", word)); err != nil {
			t.Fatal(err)
		}
	}
	self, _ := os.Executable()
	serve := map[string]any{"command": self, "args": []any{"serve", "127.0.0.1:${NUSA_PORT_http}", word}}
	m.order(testOrder("aaaa", 1, "process", serve, withCheck(&nusav1.Check{
		Kind:     &nusav1.Check_Http{Http: &nusav1.HTTPCheck{Port: "http", Path: "/healthz"}},
		Interval: durationpb.New(time.Second), Failures: 1}, port, 1)))
	c := testConfig(t, filepath.Join(dir, "data"), nil, m.addr)
	c.SupervisorArgv = []string{self, "supervise"}
	stop := runAgent(t, c)
	task := func() *nusav1.TaskState { return m.reports["aaaa"].GetTasks()["main"] }
	what := fmt.Sprintf("http :%d/healthz", port)
	m.until("it to wait for its check", func() bool {
		r := m.reports["aaaa"]
		return r.GetState() == nusav1.AllocState_ALLOC_STATE_STARTING && task().GetState() == nusav1.AllocState_ALLOC_STATE_STARTING &&
			r.GetReason() == nusav1.Reason_REASON_NOT_HEALTHY_YET && r.GetMessage() == what+": status 503: warming up" && task().GetCheck().GetState() == waiting
	})
	say("well")
	if r := m.untilState("aaaa", running); r.GetMessage() != "" || r.GetReason() != 0 || task().GetCheck().GetState() != healthy || task().GetState() != running {
		t.Errorf("healthy as %v", r)
	}
	since := task().GetCheck().GetSince().AsTime()

	// The next agent reports the same state. A report of another state would be
	// wrong.
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.reports = map[string]*nusav1.AllocReport{} })
	runAgent(t, c)
	m.until("a report of the next agent", func() bool { return m.reports["aaaa"] != nil })
	m.mu.Lock()
	if got := task().GetCheck(); m.reports["aaaa"].GetState() != running || task().GetState() != running || got.GetState() != healthy || !got.GetSince().AsTime().Equal(since) {
		t.Errorf("adopted as %v", m.reports["aaaa"])
	}
	m.mu.Unlock()

	// The allocation stays running while its task restarts.
	say("ill")
	m.until("a restart", func() bool {
		return m.reports["aaaa"].GetState() == running && task().GetRun() == 2 && task().GetRestarts() == 1 && task().GetState() == nusav1.AllocState_ALLOC_STATE_STARTING
	})
	say("well")
	m.until("it to be healthy again", func() bool { return task().GetState() == running && task().GetCheck().GetState() == healthy })
	if got, err := nusav1.NewAllocationsClient(m.conn()).Get(t.Context(), &nusav1.GetAllocationRequest{Id: "aaaa"}); err != nil || got.GetTasks()["main"].GetCheck().GetMessage() != "status 200" {
		t.Errorf("asked itself, the agent says %v: %v", got, err)
	}
	say("worse")
	r := m.untilState("aaaa", failed)
	if r.GetReason() != nusav1.Reason_REASON_RESTARTS_EXHAUSTED || task().GetReason() != nusav1.Reason_REASON_UNHEALTHY || task().GetCheck().GetState() != unhealthy ||
		!strings.Contains(r.GetMessage(), "failed its check: "+what+": status 503: worse") {
		t.Errorf("failed as %v", r)
	}
	events := map[string]int{}
	for _, e := range task().GetEvents() {
		events[e.GetType()]++
	}
	if events["healthy"] < 1 || events["unhealthy"] != 2 {
		t.Errorf("events %v", task().GetEvents())
	}
}

// TestUnhealthyAtTheDeadlineFails: a task whose check never passes fails at the
// deadline, with the check's result. A command check runs in the task.
func TestUnhealthyAtTheDeadlineFails(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	m.order(testOrder("aaaa", 1, "process", sh("sleep 3600"), withCheck(&nusav1.Check{
		Kind:            &nusav1.Check_Command{Command: &nusav1.CommandCheck{Command: []string{"sh", "-c", "echo not in $NUSA_GROUP >&2; exit 3"}}},
		HealthyDeadline: durationMillis(300)}, 0, 0)))
	m.order(testOrder("bbbb", 2, "process", sh("sleep 3600"), withCheck(&nusav1.Check{
		Kind: &nusav1.Check_Command{Command: &nusav1.CommandCheck{Command: []string{"sleep", "3600"}}}, Timeout: durationMillis(100),
		HealthyDeadline: durationMillis(300)}, 0, 0)))
	m.order(testOrder("cccc", 3, "process", sh("sleep 3600"), withCheck(&nusav1.Check{
		Kind: &nusav1.Check_Command{Command: &nusav1.CommandCheck{Command: []string{"sh", "-c", "true ${NUSA_TASK}"}}}}, 0, 0)))
	m.order(testOrder("dddd", 4, "process", sh("exit 0"), withCheck(&nusav1.Check{Kind: &nusav1.Check_Tcp{Tcp: &nusav1.TCPCheck{Port: "http"}}}, 1, 0), batch))
	c := testConfig(t, dir, nil, m.addr)
	self, _ := os.Executable()
	c.SupervisorArgv = []string{self, "supervise"}
	runAgent(t, c)
	for id, want := range map[string]string{
		"aaaa": "was not healthy within 300ms: command sh -c echo not in $NUSA_GROUP >&2; exit 3: exit code 3: not in web",
		"bbbb": "was not healthy within 300ms: command sleep 3600: did not end within 100ms",
	} {
		if r := m.untilState(id, failed); r.GetReason() != nusav1.Reason_REASON_UNHEALTHY || !strings.Contains(r.GetMessage(), want) || r.GetTasks()["main"].GetExitCode() == 0 {
			t.Errorf("failed as %v", r)
		}
	}
	m.untilState("cccc", running)
	if r := m.untilState("dddd", failed); !r.GetDeclined() || !strings.Contains(r.GetMessage(), "a batch job cannot have one") {
		t.Errorf("a batch job: %v", r)
	}
}

// answering is the mock driver, but its commands return a result that the test chooses.
type answering struct {
	*mock.Driver
	answer func() error
}

func (s answering) Exec(ctx context.Context, _ driver.ID, x driver.Exec) (driver.ExitStatus, error) {
	if err := s.answer(); err != nil {
		fmt.Fprintln(x.Stderr, err)
		return driver.ExitStatus{Code: 1}, nil
	}
	return driver.ExitStatus{}, nil
}

// TestUnchangedResultsAreNotReported: a check result that changes nothing causes no report.
func TestUnchangedResultsAreNotReported(t *testing.T) {
	m := newMaster(t)
	var calls atomic.Int64
	drv := answering{newMock(), func() error {
		if calls.Add(1) == 1 {
			return errors.New("not yet")
		}
		return nil
	}}
	m.order(testOrder("aaaa", 1, "mock", nil, withCheck(&nusav1.Check{Kind: &nusav1.Check_Command{Command: &nusav1.CommandCheck{Command: []string{"x"}}},
		Interval: durationMillis(20)}, 0, 0)))
	runAgent(t, testConfig(t, t.TempDir(), drv, m.addr))
	m.untilState("aaaa", running)
	m.mu.Lock()
	reported := m.position
	m.mu.Unlock()
	polled(t, "more checks", func() bool { return calls.Load() > 10 })
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.position != reported {
		t.Errorf("reports up to %v were sent after %v", m.position, reported)
	}
}
