package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// session is an exec session that collects its output.
type session struct {
	nusav1.Allocations_ExecClient
	t *testing.T
}

func execIn(t *testing.T, ctx context.Context, conn *grpc.ClientConn, start *nusav1.ExecRequest_Start) session {
	t.Helper()
	stream, err := nusav1.NewAllocationsClient(conn).Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := session{stream, t}
	s.say(&nusav1.ExecRequest{Start: start})
	return s
}

func (s session) say(m *nusav1.ExecRequest) {
	s.t.Helper()
	if err := s.Send(m); err != nil && !errors.Is(err, io.EOF) {
		s.t.Fatal(err)
	}
}

// until reads output until the output ends with a text.
func (s session) until(want string) {
	s.t.Helper()
	got := ""
	for !strings.HasSuffix(got, want) {
		m, err := s.Recv()
		if err != nil {
			s.t.Fatalf("%v, after %q, want %q", err, got, want)
		}
		got += string(m.GetStdout()) + string(m.GetStderr())
	}
}

// end reads the rest of the output. It returns the exit code, or an error if there is none.
func (s session) end() (code int32, err error) {
	for {
		m, err := s.Recv()
		if err != nil {
			return -1, err
		}
		if m.GetExited() {
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				return -1, fmt.Errorf("after the exit code: %w", err)
			}
			return m.GetExitCode(), nil
		}
	}
}

// talker returns a job whose task prints a line when it starts.
func talker(name string) string { return behaving(name, "service", `SIM_STDOUT: "hello "`, "", "") }

// instance returns the allocation of a job's only instance.
func instance(t *testing.T, f *sim.Federation, name string) sim.Run {
	t.Helper()
	awaitRunsOnce(f, 10*time.Second, name, 1)
	runs, err := f.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return runs[sim.Instance{Job: name, Group: "web"}][0]
}

// TestReachThroughTiers: every kind of server serves a command with a terminal, its sizes, input
// and exit code, a task's usage, and its output across restarts. Each returns a clear error for an
// allocation that does not exist or has ended.
func TestReachThroughTiers(t *testing.T) {
	inBubble(t, sim.Options{Globals: 2, Servers: 3}, func(t *testing.T, f *sim.Federation) {
		in := func(file string) string {
			return strings.Replace(file, "groups:", "regions: {allow: [{name: beta}]}\ngroups:", 1)
		}
		f.Submit(in(talker("talks")))
		f.Submit(in(behaving("gone", "batch", `SIM_STDOUT: "was here", SIM_RUN_TIME: 1s`, "", "")))
		alloc := instance(t, f, "talks")
		time.Sleep(10 * time.Second)
		list, err := f.Allocations(t.Context(), "beta")
		if err != nil {
			t.Fatal(err)
		}
		ended := ""
		for _, a := range list {
			if a.GetJob() == "gone" && a.GetState() == nusav1.AllocState_ALLOC_STATE_COMPLETE {
				ended = a.GetId()
			}
		}
		active, master := f.Active(), f.Master(alloc.Region)
		for name, conn := range map[string]*grpc.ClientConn{
			"active": f.Global(active), "standby": f.Global(3 - active),
			"master": f.Server(alloc.Region, master), "follower": f.Server(alloc.Region, master%3+1),
		} {
			t.Logf("through the %s", name)
			reach(t, conn, alloc.Alloc)
			reachErrors(t, conn, alloc.Alloc, ended)
		}
		if n := f.Sessions(); n != 0 {
			t.Errorf("%d commands are left", n)
		}
	})
}

// reach makes every call that a running task supports.
func reach(t *testing.T, conn *grpc.ClientConn, alloc string) {
	t.Helper()
	s := execIn(t, t.Context(), conn, &nusav1.ExecRequest_Start{Allocation: alloc, Command: []string{"echo", "7"}, Tty: true, Size: &nusav1.TerminalSize{Columns: 100, Rows: 30}})
	s.until("terminal 100x30;")
	s.say(&nusav1.ExecRequest{Stdin: []byte("one ")})
	s.until("one ")
	s.say(&nusav1.ExecRequest{Resize: &nusav1.TerminalSize{Columns: 120, Rows: 40}})
	s.until("now 120x40;")
	long := strings.Repeat("x", 32<<10)
	for range 20 {
		s.say(&nusav1.ExecRequest{Stdin: []byte(long)})
		s.until(long)
	}
	s.say(&nusav1.ExecRequest{Stdin: []byte("two"), StdinClose: true})
	s.until("two")
	if code, err := s.end(); code != 7 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	// The end of the caller's stream is the end of the input.
	s = execIn(t, t.Context(), conn, &nusav1.ExecRequest_Start{Allocation: alloc[:8], Command: []string{"echo", "0"}})
	s.until("no terminal;")
	if err := s.CloseSend(); err != nil {
		t.Error(err)
	}
	if code, err := s.end(); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	// A caller that leaves ends its command.
	ctx, cancel := context.WithCancel(t.Context())
	s = execIn(t, ctx, conn, &nusav1.ExecRequest_Start{Allocation: alloc, Command: []string{"echo", "0"}})
	s.until("no terminal;")
	cancel()
	synctest.Wait()
	time.Sleep(time.Second)

	stats, err := nusav1.NewAllocationsClient(conn).Stats(t.Context(), &nusav1.AllocationStatsRequest{Allocation: alloc[:8]})
	if m := stats.GetTasks()["main"]; err != nil || stats.GetAllocation() != alloc || m.GetMemoryBytes() != 2<<20 || m.GetProcesses() != 4 || m.GetUp().AsDuration() < 10*time.Second {
		t.Errorf("%v, %v", stats, err)
	}
}

// reachErrors asks for allocations that do not exist.
func reachErrors(t *testing.T, conn *grpc.ClientConn, alloc, ended string) {
	t.Helper()
	client := nusav1.NewAllocationsClient(conn)
	ask := func(kind, id string) error {
		switch kind {
		case "exec":
			_, err := execIn(t, t.Context(), conn, &nusav1.ExecRequest_Start{Allocation: id, Command: []string{"echo", "0"}}).end()
			return err
		case "exec task":
			_, err := execIn(t, t.Context(), conn, &nusav1.ExecRequest_Start{Allocation: id, Task: "other", Command: []string{"echo", "0"}}).end()
			return err
		case "exec nothing":
			_, err := execIn(t, t.Context(), conn, &nusav1.ExecRequest_Start{Allocation: id}).end()
			return err
		case "exec unstartable":
			_, err := execIn(t, t.Context(), conn, &nusav1.ExecRequest_Start{Allocation: id, Command: []string{"echo", "x"}}).end()
			return err
		case "exec startless":
			_, err := execIn(t, t.Context(), conn, nil).end()
			return err
		case "stats":
			st, err := client.Stats(t.Context(), &nusav1.AllocationStatsRequest{Allocation: id})
			if m := st.GetTasks()["main"].GetMessage(); err == nil && m != "task main does not run" {
				t.Errorf("stats of what has ended: %v", st)
			}
			return err
		}
		stream, err := client.Logs(t.Context(), &nusav1.LogsRequest{Allocation: id, Follow: true})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	}
	for _, c := range []struct {
		kind, id string
		want     codes.Code
	}{
		{"exec", "00000000", codes.NotFound}, {"stats", "00000000", codes.NotFound}, {"logs", "00000000", codes.NotFound},
		{"exec", "x", codes.InvalidArgument}, {"stats", "", codes.InvalidArgument}, {"logs", "x", codes.InvalidArgument},
		{"exec", ended, codes.FailedPrecondition}, {"stats", ended, codes.OK}, {"logs", ended, codes.OK},
		{"exec task", alloc, codes.InvalidArgument}, {"exec nothing", alloc, codes.InvalidArgument},
		{"exec unstartable", alloc, codes.FailedPrecondition}, {"exec startless", alloc, codes.InvalidArgument},
	} {
		if err := ask(c.kind, c.id); status.Code(err) != c.want {
			t.Errorf("%s of %q: %v, want %v", c.kind, c.id, err, c.want)
		}
	}
}

// TestFollowThroughRestarts: a client that follows a task's output receives the output of all
// runs, to the end of the last.
func TestFollowThroughRestarts(t *testing.T) {
	inBubble(t, sim.Options{}, func(t *testing.T, f *sim.Federation) {
		f.Submit(behaving("talks", "service", `SIM_STDOUT: "hello ", SIM_RUN_TIME: 5s, SIM_EXIT_CODE: 1`, "reschedule: {attempts: 0}", "restart: {attempts: 2, window: 1h, delay: 1s}"))
		alloc := instance(t, f, "talks")
		stream, err := nusav1.NewAllocationsClient(f.Global(1)).Logs(t.Context(), &nusav1.LogsRequest{Allocation: alloc.Alloc, Follow: true})
		got := ""
		for err == nil {
			var c *nusav1.LogChunk
			c, err = stream.Recv()
			got += string(c.GetData())
		}
		if !errors.Is(err, io.EOF) || got != "hello hello hello " {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestSessionsEndWhenTheWayToTheAgentBreaks: when the way to the agent breaks, every open session gets an error and
// its command ends. A new session works once the way is whole again. No caller hangs.
func TestSessionsEndWhenTheWayToTheAgentBreaks(t *testing.T) {
	region := func(f *sim.Federation, a sim.Run) (x, y string) { return f.GlobalIPs()[0], f.ServerIP(a.Region, 1) }
	node := func(f *sim.Federation, a sim.Run) (x, y string) {
		return f.ServerIP(a.Region, 1), f.Process(a.Agent).IP
	}
	for _, c := range []struct {
		name string
		ends func(f *sim.Federation, a sim.Run) (x, y string)
		cut  bool
	}{
		{"region cut off", region, true}, {"region reset", region, false},
		{"node cut off", node, true}, {"node reset", node, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 1}, func(t *testing.T, f *sim.Federation) {
				f.Submit(talker("talks"))
				alloc := instance(t, f, "talks")
				x, y := c.ends(f, alloc)
				quiet := 0
				for round := range 4 {
					cutInBetween(t, f, alloc, func() (heal func()) {
						if c.cut {
							return f.Cut([]string{x}, []string{y})
						}
						f.Net.Break(x, y)
						return func() {}
					})
					time.Sleep(5 * time.Minute) // idle tunnels close
					synctest.Wait()
					if round > 0 && runtime.NumGoroutine() > quiet+3 {
						time.Sleep(2 * time.Minute) // each ten minutes the tiers compare what they have, over a tunnel, too
						synctest.Wait()
					}
					if n := runtime.NumGoroutine(); round == 0 {
						quiet = n
					} else if n > quiet+3 {
						t.Errorf("%d goroutines after round %d, %d after the first", n, round, quiet)
					}
				}
			})
		})
	}
}

// TestReachProcessEnds is TestSessionsEndWhenTheWayToTheAgentBreaks for a process on the way that ends, by SIGTERM or
// by a kill.
func TestReachProcessEnds(t *testing.T) {
	global := func(f *sim.Federation) { f.StartGlobal(1) }
	server := func(f *sim.Federation) { f.StartServer("alpha", 1) }
	agent := func(f *sim.Federation) { f.StartAgent("alpha", 1) }
	for _, c := range []struct {
		name, process string
		kill          bool // otherwise the process is asked to end
		again         func(f *sim.Federation)
	}{
		{"global server killed", "global-1", true, global}, {"global server ends", "global-1", false, global},
		{"master killed", "alpha-1", true, server}, {"master ends", "alpha-1", false, server},
		{"agent ends", "alpha-agent-1", false, agent},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 1, Disk: true}, func(t *testing.T, f *sim.Federation) {
				f.Submit(talker("talks"))
				alloc := instance(t, f, "talks")
				cutInBetween(t, f, alloc, func() (heal func()) {
					if c.kill {
						f.Kill(c.process)
					} else {
						f.Stop(c.process)
					}
					return func() { c.again(f) }
				})
			})
		})
	}
}

// cutInBetween holds sessions of each kind while the way breaks.
func cutInBetween(t *testing.T, f *sim.Federation, alloc sim.Run, fault func() (heal func())) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const each = 5
	ends := make(chan error, 2*each)
	for range each {
		s := execIn(t, ctx, f.Global(1), &nusav1.ExecRequest_Start{Allocation: alloc.Alloc, Command: []string{"echo", "0"}})
		s.until("no terminal;")
		logs, err := nusav1.NewAllocationsClient(f.Global(1)).Logs(ctx, &nusav1.LogsRequest{Allocation: alloc.Alloc, Follow: true})
		if err == nil {
			_, err = logs.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, err := s.end(); ends <- err }()
		go func() { _, err := logs.Recv(); ends <- err }()
	}
	if n := f.Sessions(); n != each {
		t.Errorf("%d commands run, want %d", n, each)
	}
	began := time.Now()
	heal := fault()
	for range 2 * each {
		if err := <-ends; status.Code(err) != codes.Unavailable {
			t.Errorf("after %v it ended with %v, want UNAVAILABLE", time.Since(began), err)
		}
	}
	t.Logf("error after %v", time.Since(began))
	f.Eventually(time.Minute, "the commands end", func(context.Context) error {
		if n := f.Sessions(); n != 0 {
			return fmt.Errorf("%d commands still run", n)
		}
		return nil
	})
	heal()
	f.AwaitRegions()
	f.Eventually(time.Minute, "a new session", func(ctx context.Context) error {
		stream, err := nusav1.NewAllocationsClient(f.Global(1)).Exec(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&nusav1.ExecRequest{Start: &nusav1.ExecRequest_Start{Allocation: alloc.Alloc, Command: []string{"echo", "3"}}}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_ = stream.CloseSend()
		code, err := session{stream, t}.end()
		if err == nil && code != 3 {
			err = fmt.Errorf("exit code %d", code)
		}
		return err
	})
}
