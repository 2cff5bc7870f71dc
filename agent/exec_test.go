package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/api"
	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// execed runs a command in a task, until the command ends.
func execed(t *testing.T, c nusav1.AllocationsClient, start *nusav1.ExecRequest_Start, input string) (stdout, stderr string, code int32, err error) {
	t.Helper()
	stream, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&nusav1.ExecRequest{Start: start}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	go func() {
		for rest := input; rest != ""; {
			n := min(len(rest), driver.MaxChunk)
			if stream.Send(&nusav1.ExecRequest{Stdin: []byte(rest[:n])}) != nil {
				return
			}
			rest = rest[n:]
		}
		_ = stream.CloseSend()
	}()
	code = -1
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stdout, stderr, code, nil
		}
		if err != nil {
			return stdout, stderr, code, err
		}
		if len(m.GetStdout()) > driver.MaxChunk || len(m.GetStderr()) > driver.MaxChunk {
			t.Errorf("a message of %d and %d bytes", len(m.GetStdout()), len(m.GetStderr()))
		}
		stdout, stderr = stdout+string(m.GetStdout()), stderr+string(m.GetStderr())
		if m.GetExited() {
			code = m.GetExitCode()
		}
	}
}

// TestExecRunsInTheTask: a command through a tunnel runs in its task.
func TestExecRunsInTheTask(t *testing.T) {
	m := newMaster(t)
	m.order(testOrder("aaaa", 1, "process", sh("exec sleep 3600"))) // one process: its number stays
	m.order(testOrder("cccc", 3, "process", sh("exit 0"), batch))
	c := testConfig(t, t.TempDir(), nil, m.addr)
	self, _ := os.Executable()
	c.SupervisorArgv = []string{self, "supervise"}
	runAgent(t, c)
	m.untilState("aaaa", running)
	t.Cleanup(func() { // because tasks outlive their agent
		o := testOrder("aaaa", 9, "process", sh("sleep 3600"))
		o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
		m.order(o)
		m.untilState("aaaa", stopped)
	})
	m.untilState("cccc", complete)
	t.Cleanup(func() { // must run before the agent ends, because the agent leaves its tasks running
		m.set(func() { m.box.DeleteAt(10, "aaaa"); m.box.DeleteAt(11, "cccc") })
		m.until("both to be forgotten", func() bool { return len(m.reports) == 0 })
	})
	client := nusav1.NewAllocationsClient(m.conn())
	words := func(script string) []string { return []string{"sh", "-c", script} }

	input := strings.Repeat("0123456789abcde\n", 20_000)
	out, errs, code, err := execed(t, client, &nusav1.ExecRequest_Start{Allocation: "aaaa", Command: words("cat; echo $NUSA_TASK >&2; exit 9")}, input)
	if out != input || errs != "main\n" || code != 9 || err != nil {
		t.Errorf("%d of %d bytes, %q, %d, %v", len(out), len(input), errs, code, err)
	}
	if out, _, code, err := execed(t, client, &nusav1.ExecRequest_Start{Allocation: "aaaa", Command: words("stty size"), Tty: true, Size: &nusav1.TerminalSize{Columns: 7, Rows: 5}}, ""); out != "5 7\r\n" || code != 0 || err != nil {
		t.Errorf("in a terminal: %q, %d, %v", out, code, err)
	}
	for name, x := range map[string]struct {
		start *nusav1.ExecRequest_Start
		input string
		code  codes.Code
		text  string
	}{
		"no start":   {nil, "", codes.InvalidArgument, "must have start"},
		"no command": {&nusav1.ExecRequest_Start{Allocation: "aaaa"}, "", codes.InvalidArgument, "is empty"},
		"long":       {&nusav1.ExecRequest_Start{Allocation: "aaaa", Command: []string{strings.Repeat("x", api.MaxCommand)}}, "", codes.InvalidArgument, "64 KiB"},
		"zero byte":  {&nusav1.ExecRequest_Start{Allocation: "aaaa", Command: []string{"a\x00b"}}, "", codes.InvalidArgument, "zero byte"},
		"size":       {&nusav1.ExecRequest_Start{Allocation: "aaaa", Command: []string{"ls"}, Tty: true, Size: &nusav1.TerminalSize{Columns: 1 << 20}}, "", codes.InvalidArgument, "1..65535"},
		"no task":    {&nusav1.ExecRequest_Start{Allocation: "aaaa", Task: "other", Command: []string{"ls"}}, "", codes.InvalidArgument, "not one of: main"},
		"unknown":    {&nusav1.ExecRequest_Start{Allocation: "dddd", Command: []string{"ls"}}, "", codes.NotFound, "dddd"},
		"ended":      {&nusav1.ExecRequest_Start{Allocation: "cccc", Command: []string{"ls"}}, "", codes.FailedPrecondition, "does not run"},
	} {
		if _, _, _, err := execed(t, client, x.start, x.input); status.Code(err) != x.code || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, x.code, x.text)
		}
	}
	testCommandFaults(t, client)
	testExecSessions(t, client, words)

	stats, err := client.Stats(t.Context(), &nusav1.AllocationStatsRequest{Allocation: "aaaa"})
	if s := stats.GetTasks()["main"]; err != nil || s.GetProcesses() < 1 || s.GetMemoryBytes() <= 0 || s.GetUp().AsDuration() <= 0 || s.GetMessage() != "" {
		t.Errorf("it uses %v: %v", stats, err)
	}
	stats, err = client.Stats(t.Context(), &nusav1.AllocationStatsRequest{Allocation: "cccc"})
	if err != nil || !strings.Contains(stats.GetTasks()["main"].GetMessage(), "does not run") {
		t.Errorf("what has ended uses %v: %v", stats, err)
	}
}

// testExecSessions checks two ends of a session and its command: by a message that is too
// long, and by a caller that disconnects. The number of sessions is limited.
func testExecSessions(t *testing.T, client nusav1.AllocationsClient, words func(string) []string) {
	open := func(ctx context.Context) nusav1.Allocations_ExecClient {
		stream, err := client.Exec(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&nusav1.ExecRequest{Start: &nusav1.ExecRequest_Start{Allocation: "aaaa", Command: words("echo up; sleep 3600")}}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	processes := func() int32 {
		stats, err := client.Stats(t.Context(), &nusav1.AllocationStatsRequest{Allocation: "aaaa"})
		if err != nil {
			t.Fatal(err)
		}
		return stats.GetTasks()["main"].GetProcesses()
	}
	before := processes()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var streams []nusav1.Allocations_ExecClient
	for range api.MaxExecs {
		streams = append(streams, open(ctx))
	}
	for _, s := range streams {
		if m, err := s.Recv(); string(m.GetStdout()) != "up\n" {
			t.Fatalf("%v: %v", m, err)
		}
	}
	if _, err := open(ctx).Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one session more: %v", err)
	}
	if err := streams[0].Send(&nusav1.ExecRequest{Stdin: make([]byte, driver.MaxChunk+1)}); err != nil {
		t.Fatal(err)
	}
	if m, err := streams[0].Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too long a message: %v, %v", m, err)
	}
	cancel()
	// The slots of the sessions are free and no process is left.
	polled(t, "the commands to be killed", func() bool { return processes() <= before })
	polled(t, "their places to be free", func() bool {
		_, _, code, err := execed(t, client, &nusav1.ExecRequest_Start{Allocation: "aaaa", Command: words("exit 0")}, "")
		return err == nil && code == 0
	})
}

// testCommandFaults checks a command that cannot be started. It ends like in a shell, with
// the command's name, also in a terminal.
func testCommandFaults(t *testing.T, client nusav1.AllocationsClient) {
	t.Helper()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]int32{"no-such-command": 127, "/no/such/command": 127, plain: 126, "/": 126} {
		for _, tty := range []bool{false, true} {
			out, errs, code, err := execed(t, client, &nusav1.ExecRequest_Start{Allocation: "aaaa", Command: []string{command}, Tty: tty}, "")
			if err != nil || code != want || out != "" || !strings.HasPrefix(errs, fmt.Sprintf("nusa: command %q: ", command)) || strings.HasSuffix(errs, "\r\n") != tty {
				t.Errorf("%s, terminal %v: %q, %q, exit code %d instead of %d, %v", command, tty, out, errs, code, want, err)
			}
		}
	}
}
