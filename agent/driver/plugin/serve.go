package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The environment variables of a plugin. The text of proto/nusa/v1/driver.proto explains
// them.
const (
	envSocket = "NUSA_PLUGIN_SOCKET"
	envDir    = "NUSA_PLUGIN_DIR"
	envName   = "NUSA_PLUGIN_NAME"
)

// serveGrace bounds how long running calls may continue after the agent has ended.
const serveGrace = 2 * time.Second

// Dir returns the absolute path of the plugin's private folder, for data that outlives the
// plugin. It returns "" if no agent started this process.
func Dir() string { return os.Getenv(envDir) }

// Serve is the main function of a plugin in Go. It serves the agent's calls with d until
// the agent ends the plugin. After that the runs of d must continue. name is the value of
// `driver` in job files.
func Serve(name string, d driver.Driver) error {
	socket := os.Getenv(envSocket)
	if socket == "" {
		return fmt.Errorf("this is the driver %s for Nusa, which an agent starts: nusa agent --plugin %[1]s=%[2]s", name, os.Args[0])
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(2 * maxMessageBytes))
	nusav1.RegisterDriverServer(s, &server{name: name, d: d})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the agent closes this pipe when it ends
		t := time.AfterFunc(serveGrace, s.Stop)
		defer t.Stop()
		s.GracefulStop()
	}()
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // the agent ended before this driver served
}

// server serves a driver over gRPC.
type server struct {
	nusav1.UnimplementedDriverServer
	name string
	d    driver.Driver
}

// Handshake chooses the greatest version that both sides speak.
func (s *server) Handshake(_ context.Context, r *nusav1.HandshakeRequest) (*nusav1.HandshakeResponse, error) {
	v, err := choose(r)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nusav1.HandshakeResponse{Protocol: v, Name: s.name}, nil
}

// Fingerprint calls the driver, like all other methods.
func (s *server) Fingerprint(ctx context.Context, _ *nusav1.FingerprintRequest) (*nusav1.DriverInfo, error) {
	f := s.d.Fingerprint(ctx)
	return &nusav1.DriverInfo{Name: s.name, Healthy: f.Healthy, Version: f.Version, Message: clip(f.Message, maxMessage), Capabilities: f.Capabilities, Config: job.ConfigSchemaToProto(f.Config)}, nil
}

func done(err error) (*nusav1.DriverDone, error) { return &nusav1.DriverDone{}, errorToProto(err) }

func (s *server) Start(ctx context.Context, r *nusav1.StartRunRequest) (*nusav1.DriverDone, error) {
	return done(s.d.Start(ctx, taskFromProto(r)))
}

func (s *server) Status(ctx context.Context, r *nusav1.RunRequest) (*nusav1.RunStatus, error) {
	st, err := s.d.Status(ctx, idFromProto(r.GetId()))
	return statusToProto(st), errorToProto(err)
}

func (s *server) Wait(ctx context.Context, r *nusav1.WaitRunRequest) (*nusav1.RunStatus, error) {
	id := idFromProto(r.GetId())
	limited, cancel := context.WithTimeout(ctx, r.GetLimit().AsDuration())
	defer cancel()
	st, err := s.d.Wait(limited, id)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		st, err = s.d.Status(ctx, id)
	}
	return statusToProto(st), errorToProto(err)
}

func (s *server) Stop(ctx context.Context, r *nusav1.StopRunRequest) (*nusav1.DriverDone, error) {
	return done(s.d.Stop(ctx, idFromProto(r.GetId()), r.GetGrace().AsDuration()))
}

func (s *server) Renew(ctx context.Context, r *nusav1.RenewRunRequest) (*nusav1.DriverDone, error) {
	return done(s.d.Renew(ctx, idFromProto(r.GetId()), lease.Deadline{At: r.GetDeadline().AsDuration(), Number: r.GetNumber()}))
}

func (s *server) Logs(r *nusav1.RunLogsRequest, out nusav1.Driver_LogsServer) error {
	o := driver.LogOptions{Stdout: r.GetStdout(), Stderr: r.GetStderr(), Follow: r.GetFollow(), TailBytes: r.GetTailBytes(), TailLines: int(r.GetTailLines())}
	return errorToProto(s.d.Logs(out.Context(), idFromProto(r.GetId()), o, func(c driver.LogChunk) error {
		return out.Send(&nusav1.LogChunk{Stderr: c.Stderr, Data: slices.Clone(c.Data)})
	}))
}

func (s *server) Stats(ctx context.Context, r *nusav1.RunRequest) (*nusav1.RunStats, error) {
	st, err := s.d.Stats(ctx, idFromProto(r.GetId()))
	return statsToProto(st), errorToProto(err)
}

func (s *server) Update(ctx context.Context, r *nusav1.UpdateRunRequest) (*nusav1.DriverDone, error) {
	return done(s.d.Update(ctx, idFromProto(r.GetId()), limitsFromProto(r.GetLimits())))
}

func (s *server) Signal(ctx context.Context, r *nusav1.SignalRunRequest) (*nusav1.DriverDone, error) {
	return done(s.d.Signal(ctx, idFromProto(r.GetId()), int(r.GetSignal())))
}

func (s *server) Size(ctx context.Context, r *nusav1.RunRequest) (*nusav1.RunSize, error) {
	n, err := s.d.Size(ctx, idFromProto(r.GetId()))
	return &nusav1.RunSize{Bytes: n}, errorToProto(err)
}

func (s *server) Remove(ctx context.Context, r *nusav1.RunRequest) (*nusav1.DriverDone, error) {
	return done(s.d.Remove(ctx, idFromProto(r.GetId())))
}

// Exec buffers one message in each direction. So a slow reader delays the command, and a
// command that does not read delays the caller.
func (s *server) Exec(stream nusav1.Driver_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return status.Error(codes.InvalidArgument, "start: must be in the first message")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	in, keys := io.Pipe()
	defer in.Close()
	sizes := make(chan driver.WindowSize)
	// This goroutine ends with the stream, at the latest when the handler returns.
	go func() {
		if err := receive(ctx, stream, keys, sizes); err != nil {
			cancel()
		}
	}()
	var send sync.Mutex
	x := driver.Exec{
		Command: start.GetCommand(), TTY: start.GetTty(), Size: sizeFromProto(start.GetSize()), Resize: sizes, Stdin: in,
		Stdout: &output{send: stream.Send, mu: &send, wrap: func(b []byte) *nusav1.RunExecResponse { return &nusav1.RunExecResponse{Stdout: b} }},
		Stderr: &output{send: stream.Send, mu: &send, wrap: func(b []byte) *nusav1.RunExecResponse { return &nusav1.RunExecResponse{Stderr: b} }},
	}
	st, err := s.d.Exec(ctx, idFromProto(start.GetId()), x)
	var fault *driver.CommandError
	if errors.As(err, &fault) {
		return stream.Send(&nusav1.RunExecResponse{Exited: true, ExitCode: int32(fault.Code), Fault: clip(fault.Text, maxMessage)})
	}
	if err != nil {
		return errorToProto(err)
	}
	return stream.Send(&nusav1.RunExecResponse{Exited: true, ExitCode: int32(st.Code), Signal: int32(st.Signal)})
}

// receive handles the agent's messages until the session ends. An error ends the
// session.
func receive(ctx context.Context, stream nusav1.Driver_ExecServer, keys *io.PipeWriter, sizes chan<- driver.WindowSize) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			keys.Close()
			return nil // the command may still run
		}
		if err != nil {
			return err
		}
		if len(m.GetStdin()) > 0 {
			_, _ = keys.Write(m.GetStdin()) // an error means that the command no longer reads
		}
		if m.GetStdinClose() {
			keys.Close()
		}
		if m.GetResize() != nil {
			select {
			case sizes <- sizeFromProto(m.GetResize()):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// output writes into a session, in messages of at most driver.MaxChunk bytes.
type output struct {
	send func(*nusav1.RunExecResponse) error
	mu   *sync.Mutex // guards the sending of both outputs
	wrap func([]byte) *nusav1.RunExecResponse
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for part := range slices.Chunk(p, driver.MaxChunk) {
		if err := o.send(o.wrap(slices.Clone(part))); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
