package api

import (
	"context"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// signalLimit bounds the time of one call of Signal, for all tasks together.
const signalLimit = 10 * time.Second

// Restart stops the runs of running tasks and starts new ones.
func (s *Allocations) Restart(ctx context.Context, req *nusav1.RestartAllocationRequest) (*nusav1.RestartAllocationResponse, error) {
	id, tasks, err := s.engine.Restart(ctx, req.GetAllocation(), req.GetTask())
	if err != nil {
		return nil, lookupError(err)
	}
	s.log.Info("an operator restarts tasks", "alloc", id, "tasks", tasks)
	return &nusav1.RestartAllocationResponse{Allocation: id, Tasks: tasks}, nil
}

// Signal sends a signal to running tasks, one after the other. If it fails for one task, the error
// names the tasks that got the signal before.
func (s *Allocations) Signal(ctx context.Context, req *nusav1.SignalAllocationRequest) (*nusav1.SignalAllocationResponse, error) {
	name, number, err := signalOf(req.GetSignal())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, signalLimit)
	defer cancel()
	id, runs, err := s.engine.Operated(ctx, req.GetAllocation(), req.GetTask())
	if err != nil {
		return nil, lookupError(err)
	}
	out := &nusav1.SignalAllocationResponse{Allocation: id}
	for _, r := range runs {
		if err := r.Driver.Signal(ctx, r.ID, number); err != nil {
			err = execError(ctx, err)
			if len(out.Tasks) > 0 {
				err = status.Errorf(status.Code(err), "%s; %s got the signal", status.Convert(err).Message(), strings.Join(out.Tasks, ", "))
			}
			return nil, err
		}
		s.engine.Signalled(ctx, r.ID, name)
		s.log.Info("an operator signals a task", "run", r.ID.String(), "signal", name)
		out.Tasks = append(out.Tasks, r.ID.Task)
	}
	return out, nil
}

// signalOf returns the full name and the number of a signal.
func signalOf(text string) (string, int, error) {
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n > 0 {
		return name, int(n), nil
	}
	return "", 0, status.Errorf(codes.InvalidArgument, "signal: %q is not the name of a signal, such as SIGHUP or USR1", text)
}
