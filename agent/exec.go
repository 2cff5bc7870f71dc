package agent

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
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxExecs at a time. Each may hold a connection to a supervisor, as logs do.
	maxExecs = 16
	// maxCommand is how many bytes a further command may have, words together.
	maxCommand = 64 << 10
	// statsLimit of all of an allocation's tasks.
	statsLimit = 5 * time.Second
)

// Exec runs a further command in a task. Nothing is held here but one message in
// each direction: who reads slowly holds up the command, and a command that does
// not read holds up the caller.
func (s *allocations) Exec(stream nusav1.Allocations_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	x, err := execOf(start)
	if err != nil {
		return err
	}
	select {
	case s.execs <- struct{}{}:
		defer func() { <-s.execs }()
	default:
		return status.Errorf(codes.ResourceExhausted, "exec: %d commands are being run on this node, which is the most; end one", maxExecs)
	}
	var run liveRun
	if !s.engine.do(stream.Context(), func() {
		var a *alloc
		var name string
		if a, name, err = s.engine.findTask(start.GetAllocation(), start.GetTask()); err == nil {
			run = s.engine.liveRun(a, name)
		}
	}) {
		return status.FromContextError(stream.Context().Err()).Err()
	}
	if err == nil && run.message != "" {
		err = status.Error(codes.FailedPrecondition, "exec: "+run.message)
	}
	if err != nil {
		return err
	}
	s.engine.log.Info("a command is run in a task", "run", run.id.String(), "terminal", x.TTY)
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	in, keys := io.Pipe()
	defer in.Close()
	sizes := make(chan driver.WindowSize)
	x.Stdin, x.Resize = in, sizes
	// Ends with the stream, at the latest when this handler returns.
	go func() { cancel(receive(ctx, stream, keys, sizes)) }()
	var send sync.Mutex
	x.Stdout = &output{stream: stream, mu: &send, wrap: func(b []byte) *nusav1.ExecResponse { return &nusav1.ExecResponse{Stdout: b} }}
	x.Stderr = &output{stream: stream, mu: &send, wrap: func(b []byte) *nusav1.ExecResponse { return &nusav1.ExecResponse{Stderr: b} }}
	end, err := run.driver.Exec(ctx, run.id, x)
	var fault *driver.CommandError
	if errors.As(err, &fault) && ctx.Err() == nil {
		// As a shell says it, and ends.
		_, _ = io.WriteString(x.Stderr, "nusa: "+fault.Text+lineEnd(x.TTY))
		end, err = driver.ExitStatus{Code: fault.Code}, nil
	}
	if err != nil {
		return execError(ctx, err)
	}
	return stream.Send(&nusav1.ExecResponse{Exited: true, ExitCode: int32(end.Code)})
}

// lineEnd is that of a terminal, which nobody translates for, or of a pipe.
func lineEnd(tty bool) string {
	if tty {
		return "\r\n"
	}
	return "\n"
}

// execOf checks what a session begins with.
func execOf(start *nusav1.ExecRequest_Start) (driver.Exec, error) {
	x := driver.Exec{Command: start.GetCommand(), TTY: start.GetTty(), Size: driver.WindowSize{Columns: 80, Rows: 24}}
	invalid := func(text string) (driver.Exec, error) { return x, status.Error(codes.InvalidArgument, text) }
	if start == nil {
		return invalid("the first message of an exec session must have start")
	}
	bytes := 0
	for _, word := range x.Command {
		bytes += len(word) + 1
		if strings.ContainsRune(word, 0) {
			return invalid("command: has a zero byte")
		}
	}
	if len(x.Command) == 0 || x.Command[0] == "" {
		return invalid("command: is empty")
	}
	if bytes > maxCommand {
		return invalid("command: is longer than 64 KiB; give it as input of a shell")
	}
	if start.GetSize() != nil {
		var ok bool
		if x.Size, ok = windowSize(start.GetSize()); !ok {
			return invalid("size: columns and rows must be 1..65535")
		}
	}
	return x, nil
}

func windowSize(w *nusav1.TerminalSize) (driver.WindowSize, bool) {
	c, r := w.GetColumns(), w.GetRows()
	return driver.WindowSize{Columns: uint16(c), Rows: uint16(r)}, c >= 1 && c <= 65535 && r >= 1 && r <= 65535
}

// receive takes the caller's messages until the command has its whole input, or
// the session ends. An error ends the session.
func receive(ctx context.Context, stream nusav1.Allocations_ExecServer, keys *io.PipeWriter, sizes chan<- driver.WindowSize) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			keys.Close()
			<-ctx.Done() // the command goes on
			return nil
		}
		if err != nil {
			return err
		}
		if len(m.GetStdin()) > driver.MaxChunk {
			return status.Errorf(codes.InvalidArgument, "stdin: %d bytes in a message, more than %d", len(m.GetStdin()), driver.MaxChunk)
		}
		if len(m.GetStdin()) > 0 {
			_, _ = keys.Write(m.GetStdin()) // fails when nobody reads any more, which is no matter
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

// output is a writer into the session, in messages of at most driver.MaxChunk.
type output struct {
	stream nusav1.Allocations_ExecServer
	mu     *sync.Mutex // of both outputs
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

// liveRun is a run that is up, or why there is none.
type liveRun struct {
	id      driver.ID
	driver  driver.Driver
	message string
}

// liveRun looks at a task. For the engine's goroutine.
func (e *engine) liveRun(a *alloc, name string) liveRun {
	to, t := a.tasks[name].driver, a.act.Tasks[name]
	r := liveRun{id: driver.ID{Alloc: a.alloc.ID, Task: name, Run: t.Run}, driver: e.drivers[to]}
	switch {
	case r.driver == nil:
		r.message = noDriver(to)
	case t.Phase != reconcile.Up && t.Phase != reconcile.Closing:
		r.message = "task " + name + " does not run"
	}
	return r
}

// execError turns a driver's error into the service's.
func execError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if _, ok := status.FromError(cause); ok {
			return cause
		}
		return status.FromContextError(cause).Err()
	}
	code := codes.Internal
	switch {
	case errors.Is(err, driver.ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, driver.ErrStart), errors.Is(err, driver.ErrNotRunning), errors.Is(err, driver.ErrNotFound), errors.Is(err, driver.ErrUnsupported):
		code = codes.FailedPrecondition
	}
	return status.Error(code, err.Error())
}

// Stats is what the tasks of an allocation use now.
func (s *allocations) Stats(ctx context.Context, req *nusav1.AllocationStatsRequest) (*nusav1.AllocationStats, error) {
	ctx, cancel := context.WithTimeout(ctx, statsLimit)
	defer cancel()
	out := &nusav1.AllocationStats{Tasks: map[string]*nusav1.TaskStats{}}
	runs := map[string]liveRun{}
	var err error
	if !s.engine.do(ctx, func() {
		var a *alloc
		if a, err = s.engine.find(req.GetAllocation()); err != nil {
			return
		}
		out.Allocation = a.alloc.ID
		for name := range a.tasks {
			runs[name] = s.engine.liveRun(a, name)
		}
	}) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	for name, r := range runs {
		out.Tasks[name] = r.stats(ctx)
	}
	return out, err
}

func (r liveRun) stats(ctx context.Context) *nusav1.TaskStats {
	if r.message != "" {
		return &nusav1.TaskStats{Message: r.message}
	}
	st, err := r.driver.Status(ctx, r.id)
	if err != nil {
		return &nusav1.TaskStats{Message: err.Error()}
	}
	u, err := r.driver.Stats(ctx, r.id)
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
