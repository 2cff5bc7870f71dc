package client

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

var reconnected = regexp.MustCompile(`reconnected after [0-9.]+m?s`)

// twoServers returns two servers and the value of --addr that names both. A call of die
// stops the first server.
func twoServers(t *testing.T) (first, second *fake, addr string) {
	first, second = newFake(t), newFake(t)
	return first, second, first.addr + "," + second.addr
}

// checkResumed compares the output of a command whose server died once.
func checkResumed(t *testing.T, addr, out, errOut string, code int, wantOut, wantErr string, wantCode int) {
	t.Helper()
	errOut = strings.ReplaceAll(reconnected.ReplaceAllString(errOut, "reconnected after 0s"), addr, "ADDR")
	if out != wantOut || errOut != wantErr || code != wantCode {
		t.Errorf("exit code %d, want %d\nout %q\nwant %q\nerr %q\nwant %q", code, wantCode, out, wantOut, errOut, wantErr)
	}
}

const lostLine = "nusa: the connection to ADDR was lost: it continues when the server is back\n"

// TestLogsContinueOnTheNextServer: after its server has died, logs -f continues on another
// server. It prints nothing twice.
func TestLogsContinueOnTheNextServer(t *testing.T) {
	first, second, addr := twoServers(t)
	first.logs = func(r *nusav1.LogsRequest, s grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		if err := s.Send(&nusav1.LogChunk{Data: []byte("one\ntwo\nth")}); err != nil {
			return err
		}
		<-s.Context().Done() // until the client has printed the line
		return s.Context().Err()
	}
	second.logs = func(r *nusav1.LogsRequest, s grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		if r.GetTailBytes() == 0 || !r.GetFollow() {
			return status.Errorf(codes.InvalidArgument, "asked for %v", r)
		}
		for _, text := range []string{"one\ntwo\nthree\n", "four\n"} {
			if err := s.Send(&nusav1.LogChunk{Data: []byte(text)}); err != nil {
				return err
			}
		}
		return s.Send(&nusav1.LogChunk{Stderr: true, Data: []byte("oh\n")})
	}
	root := Root()
	root.AddCommand(Commands()...)
	out := &seen{waits: map[string]func(){"th": first.die}}
	var errOut strings.Builder
	root.SetOut(out)
	root.SetErr(&errOut)
	code := ExecuteArgs(context.Background(), root, []string{"alloc", "logs", "-f", "--task", "server", "11112222", "--addr", addr})
	checkResumed(t, addr, out.text.String(), errOut.String(), code, "one\ntwo\nthree\nfour\n",
		lostLine+"nusa: reconnected after 0s; lines in between may be missing\noh\n", 0)
}

// TestLogsWaitForTheirRegion: logs -f waits while the region of the task has no session with
// the new active server.
func TestLogsWaitForTheirRegion(t *testing.T) {
	f := newFake(t)
	times := 0
	f.logs = func(_ *nusav1.LogsRequest, s grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		times++
		switch times {
		case 1:
			return rpcerr.Error{Code: codes.Unavailable, Reason: rpcerr.ReasonSessionEnded, Message: "the session of region tokyo has ended"}.Err()
		case 2: // the region responds and is lost again at once, so no line follows
			return status.Error(codes.Unavailable, "region tokyo has been cut off for 20s")
		}
		return s.Send(&nusav1.LogChunk{Data: []byte("one\n")})
	}
	out, errOut, code := f.run(context.Background(), "", "alloc", "logs", "-f", "--task", "server", "11112222", "--addr", f.addr)
	checkResumed(t, f.addr, out, errOut, code, "one\n",
		"nusa: the session of region tokyo has ended: it continues when that is over\nnusa: reconnected after 0s; lines in between may be missing\n", 0)
}

// TestLogsOfOneRegionWaitAlone: while logs -f waits for a region that is cut off, the
// streams of other regions continue over the same connection. One line says that the region
// is away, and one line says that it is back.
func TestLogsOfOneRegionWaitAlone(t *testing.T) {
	first, second, addr := twoServers(t)
	back := make(chan struct{})
	asked, opened := 0, 0 // numbers for eastus
	first.get = func(id string) error {
		if asked++; asked <= 7 {
			return status.Error(codes.Unavailable, "no allocation has an id that begins with that; eastus has been cut off for 20s")
		}
		return nil
	}
	first.logs = func(r *nusav1.LogsRequest, s grpc.ServerStreamingServer[nusav1.LogChunk]) error {
		if strings.HasPrefix(r.GetAllocation(), "0000") { // in eastus
			if opened++; opened == 1 {
				return rpcerr.Error{Code: codes.Unavailable, Reason: rpcerr.ReasonSessionEnded, Message: "the session with region eastus has ended"}.Err()
			}
			close(back)
			return s.Send(&nusav1.LogChunk{Data: []byte("here\n")})
		}
		if err := s.Send(&nusav1.LogChunk{Data: []byte("one\n")}); err != nil {
			return err
		}
		select {
		case <-back:
		case <-s.Context().Done():
			return s.Context().Err()
		}
		return s.Send(&nusav1.LogChunk{Data: []byte("two\n")})
	}
	_, errOut, code := first.run(context.Background(), "", "job", "logs", "-f", "watch", "--addr", addr)
	checkResumed(t, addr, "", errOut, code, "",
		"nusa: the session with region eastus has ended: it continues when that is over\nnusa: reconnected after 0s; lines in between may be missing\n", 0)
	if n := len(second.taken()); n > 0 {
		t.Errorf("the other server was asked %d times", n)
	}
}

// TestEventsContinueOnTheNextServer: if a server dies, events continue on another server
// after the last event.
func TestEventsContinueOnTheNextServer(t *testing.T) {
	first, second, addr := twoServers(t)
	first.events = func(_ *nusav1.WatchEventsRequest, s grpc.ServerStreamingServer[nusav1.Event]) error {
		if err := s.Send(&nusav1.Event{Token: "a-1", Type: "region.silent", Subject: "tokyo"}); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	second.events = func(r *nusav1.WatchEventsRequest, s grpc.ServerStreamingServer[nusav1.Event]) error {
		return s.Send(&nusav1.Event{Token: "b-1", Reset_: r.GetToken() == "a-1", Type: "region.back", Subject: "tokyo"})
	}
	root := Root()
	root.AddCommand(Commands()...)
	out := &seen{waits: map[string]func(){"region.silent": first.die}}
	var errOut strings.Builder
	root.SetOut(out)
	root.SetErr(&errOut)
	code := ExecuteArgs(context.Background(), root, []string{"events", "--addr", addr})
	checkResumed(t, addr, clock.ReplaceAllString(out.text.String(), "00:00:00"), errOut.String(), code,
		"00:00:00  region.silent         tokyo\n(a gap: older events are gone)\n00:00:00  region.back           tokyo\n",
		lostLine+"nusa: reconnected after 0s; a gap shows where events are missing\n", 0)
}

// TestJobRunWaitsOnTheNextServer: after its server has died, job run waits on another
// server and misses nothing.
func TestJobRunWaitsOnTheNextServer(t *testing.T) {
	first, second, addr := twoServers(t)
	of := func(state nusav1.JobState, c *nusav1.InstanceCounts) *nusav1.Job { return jobIn("ok", 2, state, c) }
	first.watch = func(_ *nusav1.GetJobRequest, s grpc.ServerStreamingServer[nusav1.Job]) error {
		if err := s.Send(of(nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Starting: 2})); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	second.watch = func(_ *nusav1.GetJobRequest, s grpc.ServerStreamingServer[nusav1.Job]) error {
		return s.Send(of(nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2}))
	}
	root := Root()
	root.AddCommand(Commands()...)
	out := &seen{waits: map[string]func(){"2 starting": first.die}}
	var errOut strings.Builder
	root.SetOut(out)
	root.SetErr(&errOut)
	root.SetIn(strings.NewReader(fmt.Sprintf(sample.JobFile, "ok", "service")))
	code := ExecuteArgs(context.Background(), root, []string{"job", "run", "-", "--addr", addr})
	text := after.ReplaceAllString(elapsed.ReplaceAllString(out.text.String(), "    0s $1"), "after 0s")
	checkResumed(t, addr, text, errOut.String(), code,
		"default/ok submitted, version 2 (revision 12)\n    0s starting  2 starting  on japaneast 2\n    0s running  2 running  on japaneast 2\ndefault/ok is running: 2 instances (japaneast 2) after 0s\n",
		lostLine+"nusa: reconnected after 0s\n", 0)
}

// TestExecSaysThatItCannotContinue: an exec that loses its connection has its own exit
// code. An exec that never began has the exit code of an error.
func TestExecSaysThatItCannotContinue(t *testing.T) {
	for name, c := range map[string]struct {
		ends func(f *fake) error
		want string
		code int
	}{
		"the connection is lost": {func(f *fake) error { f.drop(); return nil }, "nusa: the connection to ADDR was lost: exec cannot continue; the command is killed, and its exit code is not known\n", 254},
		"the region's session ends": {func(*fake) error {
			return rpcerr.Error{Code: codes.Unavailable, Reason: rpcerr.ReasonSessionEnded, Message: "the session of region tokyo has ended"}.Err()
		}, "nusa: the session of region tokyo has ended: exec cannot continue; the command is killed, and its exit code is not known\n", 254},
		"the stream ends":   {func(*fake) error { return nil }, "nusa: the stream ended before the command did: exec cannot continue; the command is killed, and its exit code is not known\n", 254},
		"the command fails": {func(*fake) error { return status.Error(codes.FailedPrecondition, "exec: task server does not run") }, "nusa: exec: task server does not run\n", 255},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.execEnds = func() error { return c.ends(f) }
			_, errOut, code := f.run(context.Background(), "", "alloc", "exec", "--addr", f.addr, "--task", "server", sample.Alloc().GetId(), "--", "sh")
			if got := strings.ReplaceAll(errOut, f.addr, "ADDR"); got != c.want || code != c.code {
				t.Errorf("exit code %d, %q, want %d, %q", code, got, c.code, c.want)
			}
		})
	}
}

// TestTheNextServerIsAskedWhenOneRefuses: if a server is alive but cannot serve, the client
// asks the next server of --addr.
func TestTheNextServerIsAskedWhenOneRefuses(t *testing.T) {
	first, second, addr := twoServers(t)
	refuse := status.Error(codes.Unavailable, "no leader known")
	first.refuse = refuse
	first.events = func(*nusav1.WatchEventsRequest, grpc.ServerStreamingServer[nusav1.Event]) error { return refuse }
	second.events = func(_ *nusav1.WatchEventsRequest, s grpc.ServerStreamingServer[nusav1.Event]) error {
		return s.Send(&nusav1.Event{Token: "b-1", Type: "region.back", Subject: "tokyo"})
	}
	out, errOut, code := first.run(context.Background(), "", "events", "--addr", addr)
	checkResumed(t, addr, clock.ReplaceAllString(out, "00:00:00"), errOut, code, "00:00:00  region.back           tokyo\n",
		"nusa: no leader known: it continues when that is over\nnusa: reconnected after 0s; a gap shows where events are missing\n", 0)
}

// TestAlarmsOfTheActiveServer: region list and version print the alarms of the active server,
// also when another server is asked.
func TestAlarmsOfTheActiveServer(t *testing.T) {
	const paused = "2 of 5 regions fell silent: nothing moves until some of them return"
	active, standby := newFake(t), newFake(t)
	active.info = &nusav1.InfoResponse{Role: "global", Leader: true, FederationId: "F1", Alarms: []string{paused}}
	standby.info = &nusav1.InfoResponse{Role: "global", LeaderAddress: active.addr}
	for _, f := range []*fake{active, standby} {
		if _, errOut, code := f.run(context.Background(), "", "region", "list", "--addr", f.addr); errOut != "alarm: "+paused+"\n" || code != 0 {
			t.Errorf("exit code %d, %q", code, errOut)
		}
	}
	out, _, code := active.run(context.Background(), "", "version", "--server", "--addr", active.addr)
	if !strings.HasSuffix(out, "federation id F1\nalarm: "+paused+"\n") || code != 0 {
		t.Errorf("exit code %d, %q", code, out)
	}
}
