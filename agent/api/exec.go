package api

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/engine"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// MaxExecs bounds the commands that run at the same time. Like a stream of logs, each
	// command may hold a connection to a supervisor.
	MaxExecs = 16
	// MaxCommand bounds the total length of a command's words, in bytes.
	MaxCommand = 64 << 10
	// statsLimit bounds the measurement of all tasks of an allocation.
	statsLimit = 5 * time.Second
)

// Exec runs a command in a task. The agent buffers one message in each direction. So a slow
// reader delays the command, and a command that does not read delays the caller.
func (s *Allocations) Exec(stream nusav1.Allocations_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	x, err := execFromProto(start)
	if err != nil {
		return err
	}
	select {
	case s.execs <- struct{}{}:
		defer func() { <-s.execs }()
	default:
		return status.Errorf(codes.ResourceExhausted, "exec: this node runs at most %d commands at a time; end one", MaxExecs)
	}
	run, err := s.engine.LiveRun(stream.Context(), start.GetAllocation(), start.GetTask())
	if err != nil {
		return lookupError(err)
	}
	if run.Problem != "" {
		return status.Error(codes.FailedPrecondition, "exec: "+run.Problem)
	}
	s.log.Info("a command runs in a task", "run", run.ID.String(), "terminal", x.TTY)
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	in, keys := io.Pipe()
	defer in.Close()
	sizes := make(chan driver.WindowSize)
	x.Stdin, x.Resize = in, sizes
	// This goroutine ends with the stream, at the latest when the handler returns.
	go func() { cancel(receive(ctx, stream, keys, sizes)) }()
	var send sync.Mutex
	x.Stdout = &output{stream: stream, mu: &send, wrap: func(b []byte) *nusav1.ExecResponse { return &nusav1.ExecResponse{Stdout: b} }}
	x.Stderr = &output{stream: stream, mu: &send, wrap: func(b []byte) *nusav1.ExecResponse { return &nusav1.ExecResponse{Stderr: b} }}
	end, err := run.Driver.Exec(ctx, run.ID, x)
	var fault *driver.CommandError
	if errors.As(err, &fault) && ctx.Err() == nil {
		// The caller sees the message and the exit code that a shell would give.
		_, _ = io.WriteString(x.Stderr, "nusa: "+fault.Text+lineEnd(x.TTY))
		end, err = driver.ExitStatus{Code: fault.Code}, nil
	}
	if err != nil {
		return execError(ctx, err)
	}
	return stream.Send(&nusav1.ExecResponse{Exited: true, ExitCode: int32(end.Code)})
}

// lineEnd returns the line end of a terminal in raw mode or of a pipe.
func lineEnd(tty bool) string {
	if tty {
		return "\r\n"
	}
	return "\n"
}

// execFromProto converts and checks the first message of a session.
func execFromProto(start *nusav1.ExecRequest_Start) (driver.Exec, error) {
	x := driver.Exec{Command: start.GetCommand(), TTY: start.GetTty(), Size: driver.WindowSize{Columns: 80, Rows: 24}}
	invalid := func(text string) (driver.Exec, error) { return x, status.Error(codes.InvalidArgument, text) }
	if start == nil {
		return invalid("the first message of an exec session must have start")
	}
	bytes := 0
	for _, word := range x.Command {
		bytes += len(word) + 1
		if strings.ContainsRune(word, 0) {
			return invalid("command: contains a zero byte")
		}
	}
	if len(x.Command) == 0 || x.Command[0] == "" {
		return invalid("command: is empty")
	}
	if bytes > MaxCommand {
		return invalid("command: is longer than 64 KiB; send it as the input of a shell")
	}
	if start.GetSize() != nil {
		var ok bool
		x.Size, ok = windowSize(start.GetSize())
		if !ok {
			return invalid("size: columns and rows must be 1..65535")
		}
	}
	return x, nil
}

func windowSize(w *nusav1.TerminalSize) (driver.WindowSize, bool) {
	c, r := w.GetColumns(), w.GetRows()
	return driver.WindowSize{Columns: uint16(c), Rows: uint16(r)}, c >= 1 && c <= 65535 && r >= 1 && r <= 65535
}

// receive handles the caller's messages until the command has its whole input or the
// session ends. An error ends the session.
func receive(ctx context.Context, stream nusav1.Allocations_ExecServer, keys *io.PipeWriter, sizes chan<- driver.WindowSize) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			keys.Close()
			<-ctx.Done() // the command may still run
			return nil
		}
		if err != nil {
			return err
		}
		if len(m.GetStdin()) > driver.MaxChunk {
			return status.Errorf(codes.InvalidArgument, "stdin: %d bytes in a message, more than %d", len(m.GetStdin()), driver.MaxChunk)
		}
		if len(m.GetStdin()) > 0 {
			_, _ = keys.Write(m.GetStdin()) // an error means that the command no longer reads
		}
		if m.GetStdinClose() {
			keys.Close()
		}
		if m.GetResize() != nil {
			size, ok := windowSize(m.GetResize())
			if !ok {
				return status.Error(codes.InvalidArgument, "resize: columns and rows must be 1..65535")
			}
			select {
			case sizes <- size:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// output writes into the session, in messages of at most driver.MaxChunk bytes.
type output struct {
	stream nusav1.Allocations_ExecServer
	mu     *sync.Mutex // guards the sending of both outputs
	wrap   func([]byte) *nusav1.ExecResponse
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for part := range slices.Chunk(p, driver.MaxChunk) {
		if err := o.stream.Send(o.wrap(slices.Clone(part))); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Stats returns the resources that the tasks of an allocation use now.
func (s *Allocations) Stats(ctx context.Context, req *nusav1.AllocationStatsRequest) (*nusav1.AllocationStats, error) {
	ctx, cancel := context.WithTimeout(ctx, statsLimit)
	defer cancel()
	id, runs, err := s.engine.LiveRuns(ctx, req.GetAllocation())
	if err != nil {
		return nil, lookupError(err)
	}
	out := &nusav1.AllocationStats{Allocation: id, Tasks: map[string]*nusav1.TaskStats{}}
	for name, r := range runs {
		out.Tasks[name] = stats(ctx, r)
	}
	return out, nil
}

func stats(ctx context.Context, r engine.LiveRun) *nusav1.TaskStats {
	if r.Problem != "" {
		return &nusav1.TaskStats{Message: r.Problem}
	}
	st, err := r.Driver.Status(ctx, r.ID)
	if err != nil {
		return &nusav1.TaskStats{Message: err.Error()}
	}
	u, err := r.Driver.Stats(ctx, r.ID)
	if err != nil {
		return &nusav1.TaskStats{Message: err.Error()}
	}
	out := &nusav1.TaskStats{
		Up: durationpb.New(max(0, time.Since(st.Started))), MemoryBytes: u.MemoryBytes, MemoryPeakBytes: u.MemoryPeakBytes, Processes: int32(u.Processes),
	}
	if u.CPU >= 0 {
		out.Cpu = durationpb.New(u.CPU)
	}
	return out
}
