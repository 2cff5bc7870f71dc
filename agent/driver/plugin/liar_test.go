package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// liar is a plugin that misbehaves in the way that its name says. Otherwise it does the
// minimum that the contract requires.
type liar struct {
	nusav1.UnimplementedDriverServer
	name   string
	looks  atomic.Int32
	second bool // this process is not the first one
}

func serveLiar(name string) error {
	switch name {
	case "quits":
		fmt.Fprintln(os.Stderr, "no licence found")
		os.Exit(3)
	case "mute": // ignores all calls and the end of its input
		never := make(chan os.Signal, 1)
		signal.Notify(never, syscall.SIGUSR1) // so that the runtime sees no deadlock
		<-never
	}
	l, err := net.Listen("unix", os.Getenv(envSocket))
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	_, first := os.Stat("lived")
	if err := os.WriteFile("lived", nil, 0o600); err != nil {
		return err
	}
	nusav1.RegisterDriverServer(s, &liar{name: name, second: first == nil})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	return s.Serve(l)
}

func (l *liar) Handshake(context.Context, *nusav1.HandshakeRequest) (*nusav1.HandshakeResponse, error) {
	switch l.name {
	case "newer":
		return &nusav1.HandshakeResponse{Protocol: 9, Name: l.name}, nil
	case "another":
		return &nusav1.HandshakeResponse{Protocol: 1, Name: "qemu"}, nil
	case "declines":
		_, err := choose(&nusav1.HandshakeRequest{Oldest: 7, Newest: 8})
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nusav1.HandshakeResponse{Protocol: 1, Name: l.name}, nil
}

func (l *liar) Fingerprint(_ context.Context, _ *nusav1.FingerprintRequest) (*nusav1.DriverInfo, error) {
	f := &nusav1.DriverInfo{Name: l.name, Healthy: true, Version: "0.1"}
	switch l.name {
	case "renamed":
		f.Name = "qemu"
	case "claims":
		f.Capabilities = []string{"stats", "exec", "update", "self_fencing", "recover", "exec"}
	case "shouts":
		f.Capabilities = []string{"EXEC"}
	case "boasts":
		f.Capabilities = strings.Split(strings.Repeat("c,", 40), ",")
	case "forms":
		f.Config = &nusav1.ConfigSchema{Fields: []*nusav1.ConfigField{{Name: "a"}, {Name: "a"}}}
	case "lectures":
		for range 60 {
			f.Config = &nusav1.ConfigSchema{Fields: append(f.Config.GetFields(), &nusav1.ConfigField{Name: "a", Help: strings.Repeat("x", 200)})}
		}
	case "talks":
		f.Message = strings.Repeat("m\n", 1<<19) + "the end"
	case "hangs":
		if l.looks.Add(1) == 1 || l.second {
			return f, nil
		}
		select {} // a response at the call's deadline could still arrive in time
	}
	return f, nil
}

func (l *liar) Start(_ context.Context, r *nusav1.StartRunRequest) (*nusav1.DriverDone, error) {
	switch l.name {
	case "panics":
		if r.GetEnv()["SECRET"] != "s3cr3t" {
			return nil, status.Error(codes.Internal, "no environment")
		}
		panic("out of cheese")
	case "refuses":
		return nil, status.Error(codes.InvalidArgument, "config.image: no such image: nginx:latets")
	case "garbage", "deaf", "oversized", "claims", "ended":
		return &nusav1.DriverDone{}, nil
	}
	return nil, status.Error(codes.Unimplemented, "unknown method Start")
}

func (l *liar) Status(_ context.Context, r *nusav1.RunRequest) (*nusav1.RunStatus, error) {
	unknown := status.Error(codes.NotFound, "no such task run")
	switch {
	case l.name == "knows everything":
		return &nusav1.RunStatus{State: nusav1.RunState_RUN_STATE_RUNNING}, nil
	case r.GetId().GetTask() == never.GetTask():
		return nil, unknown
	case l.name == "garbage":
		return &nusav1.RunStatus{State: 77}, nil
	case l.name == "oversized":
		return &nusav1.RunStatus{State: nusav1.RunState_RUN_STATE_RUNNING, Message: strings.Repeat("m", 3<<20)}, nil
	case l.name == "ended":
		return &nusav1.RunStatus{State: nusav1.RunState_RUN_STATE_ENDED, Finished: timestamppb.Now(), Message: strings.Repeat("long\n", 10_000)}, nil
	}
	return nil, unknown
}

func (l *liar) Wait(ctx context.Context, _ *nusav1.WaitRunRequest) (*nusav1.RunStatus, error) {
	switch l.name {
	case "deaf":
		<-ctx.Done()
	case "garbage":
		return &nusav1.RunStatus{State: nusav1.RunState_RUN_STATE_ENDED, Finished: timestamppb.Now(), ExitCode: 4711}, nil
	}
	return nil, ctx.Err()
}

func (l *liar) Logs(_ *nusav1.RunLogsRequest, s nusav1.Driver_LogsServer) error {
	if l.name == "oversized" {
		return s.Send(&nusav1.LogChunk{Data: make([]byte, driver.MaxChunk+1)})
	}
	return nil
}

func (l *liar) Size(context.Context, *nusav1.RunRequest) (*nusav1.RunSize, error) {
	return &nusav1.RunSize{Bytes: -1}, nil
}

func (l *liar) Exec(s nusav1.Driver_ExecServer) error {
	if l.name == "garbage" {
		return s.Send(&nusav1.RunExecResponse{Exited: true, ExitCode: 999})
	}
	if l.name == "oversized" {
		return s.Send(&nusav1.RunExecResponse{Exited: true, ExitCode: 3, Fault: "no such command"})
	}
	return status.Error(codes.Unimplemented, "unknown method Exec")
}

// TestFingerprintsOfLiars: the fingerprint of a faulty plugin names the fault and the
// field, so that an operator sees them. The fingerprint is unhealthy, so that no task is
// placed there.
func TestFingerprintsOfLiars(t *testing.T) {
	for name, want := range map[string]string{
		"quits":            "it does not run: it ended with exit code 3: no licence found",
		"newer":            "protocol: it chose version 9 of the contract, this agent speaks 1..1",
		"declines":         "the plugin speaks the versions 1..1 of the driver contract, the agent 7..8",
		"another":          `Handshake: name: it calls itself "qemu"`,
		"renamed":          `Fingerprint: name: is "qemu"`,
		"shouts":           `capabilities: "EXEC" is not a name`,
		"boasts":           "capabilities: there are 41, at most 32",
		"forms":            "config: a occurs twice",
		"lectures":         "config: has 12",
		"talks":            "received message larger than max",
		"knows everything": "Status: it returns run_state_running for a run that does not exist",
		"mute":             "it did not respond to the handshake within 300ms",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := defaults
			if name == "mute" {
				l.launch, l.stop = 300*time.Millisecond, 10*time.Millisecond
			}
			f := openPlugin(t, name, t.TempDir(), l).Fingerprint(patient(t))
			if f.Healthy || !strings.Contains(f.Message, want) || len(f.Message) > maxMessage+100 {
				t.Errorf("%+v, want %q", f, want)
			}
		})
	}
}

// TestMissingCapabilityIsRemoved: a capability that the plugin reports but does not have is removed, with a
// message.
func TestMissingCapabilityIsRemoved(t *testing.T) {
	d := openPlugin(t, "claims", t.TempDir(), soon())
	f := d.Fingerprint(patient(t))
	if !f.Healthy || strings.Join(f.Capabilities, " ") != "recover" || !strings.Contains(f.Message, "it reports stats, exec, update, self_fencing") {
		t.Errorf("%+v", f)
	}
	if _, err := d.Exec(t.Context(), driver.ID{Task: "x"}, driver.Exec{Command: []string{"x"}}); !errors.Is(err, driver.ErrUnsupported) {
		t.Error(err)
	}
	if err := d.Renew(t.Context(), driver.ID{Task: "x"}, lease.Deadline{At: time.Second}); !errors.Is(err, driver.ErrInvalid) {
		t.Error(err)
	}
}

// TestFaultyCallReturnsTypedError: a faulty call returns a typed error. Other calls work.
func TestFaultyCallReturnsTypedError(t *testing.T) {
	id := driver.ID{Alloc: "a", Task: "main", Run: 1}
	for _, c := range []struct {
		name, want string
		kind       error
		call       func(context.Context, *Driver) error
	}{
		{"refuses", "plugin refuses: task cannot run: config.image: no such image: nginx:latets", driver.ErrInvalid,
			func(ctx context.Context, d *Driver) error { return d.Start(ctx, task(t, nil)) }},
		{"panics", "plugin panics: Start: the driver does not respond now: it ended with exit code 2: panic: out of cheese", driver.ErrStart,
			func(ctx context.Context, d *Driver) error { return d.Start(ctx, task(t, nil)) }},
		{"talks not", "plugin talks not: Start: the driver breaks its contract: unknown method Start", driver.ErrContract,
			func(ctx context.Context, d *Driver) error { return d.Start(ctx, task(t, nil)) }},
		{"garbage", "plugin garbage: Status: the driver breaks its contract: state: 77 is none", driver.ErrContract,
			func(ctx context.Context, d *Driver) error { _, err := d.Status(ctx, id); return err }},
		{"garbage", "exit_code: 4711 is not within -1..255", driver.ErrContract,
			func(ctx context.Context, d *Driver) error { _, err := d.Wait(ctx, id); return err }},
		{"garbage", "exit_code 999", driver.ErrContract,
			func(ctx context.Context, d *Driver) error {
				_, err := d.Exec(ctx, id, driver.Exec{Command: []string{"x"}})
				return err
			}},
		{"oversized", "fault with exit_code 3: neither 126 nor 127", driver.ErrContract,
			func(ctx context.Context, d *Driver) error {
				_, err := d.Exec(ctx, id, driver.Exec{Command: []string{"x"}})
				return err
			}},
		{"garbage", "bytes: -1", driver.ErrContract,
			func(ctx context.Context, d *Driver) error { _, err := d.Size(ctx, id); return err }},
		{"oversized", "received message larger than max", driver.ErrContract,
			func(ctx context.Context, d *Driver) error { _, err := d.Status(ctx, id); return err }},
		{"oversized", "data: 32769 bytes in one message, at most 32768", driver.ErrContract,
			func(ctx context.Context, d *Driver) error {
				return d.Logs(ctx, id, driver.LogOptions{Stdout: true}, func(driver.LogChunk) error { return nil })
			}},
		{"deaf", "it responds to Fingerprint, but 3 times not to Wait: no response within 1.01s", driver.ErrContract,
			func(ctx context.Context, d *Driver) error { _, err := d.Wait(ctx, id); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			limits := defaults
			if c.name == "deaf" {
				limits.poll, limits.quick = 10*time.Millisecond, time.Second
			}
			d := openPlugin(t, c.name, t.TempDir(), limits)
			err := c.call(patient(t), d)
			var e *Error
			if !errors.Is(err, c.kind) || !errors.As(err, &e) || e.Plugin != c.name || !strings.Contains(fmt.Sprint(err), c.want) || strings.Contains(fmt.Sprint(err), "s3cr3t") {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	d := openPlugin(t, "ended", t.TempDir(), defaults)
	st, err := d.Status(patient(t), id)
	if err != nil || len(st.Message) > maxMessage+10 || strings.Contains(st.Message, "\n") {
		t.Errorf("a long message is kept as %d bytes: %v", len(st.Message), err)
	}
}

// TestHangingPluginIsStartedAgain: a plugin that hangs is killed and started again.
func TestHangingPluginIsStartedAgain(t *testing.T) {
	limits := soon()
	limits.quick = 300 * time.Millisecond
	changed := make(chan struct{}, 100)
	d := openConfig(t, Config{Name: "hangs", Path: self(), Dir: t.TempDir(), Changed: func() { changed <- struct{}{} }}, limits)
	if f := d.Fingerprint(t.Context()); f.Healthy {
		t.Fatalf("%+v", f)
	}
	ctx := patient(t)
	for !d.Fingerprint(ctx).Healthy {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("is still %+v", d.Fingerprint(t.Context()))
		}
	}
}
