package plugin

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Both sides use these conversions. The plugin trusts the agent, so the conversions do not
// check the agent's messages. The file check.go checks a plugin's messages.

func idToProto(id driver.ID) *nusav1.RunID {
	return &nusav1.RunID{Alloc: id.Alloc, Task: id.Task, Run: int32(id.Run)}
}

func idFromProto(id *nusav1.RunID) driver.ID {
	return driver.ID{Alloc: id.GetAlloc(), Task: id.GetTask(), Run: int(id.GetRun())}
}

// durationToProto converts a duration. It returns nil for 0.
func durationToProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func timeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFromProto(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func limitsToProto(r driver.Resources) *nusav1.RunLimits {
	return &nusav1.RunLimits{CpuMilli: r.CPUMilli, MemoryBytes: r.MemoryBytes, DiskBytes: r.DiskBytes}
}

func limitsFromProto(r *nusav1.RunLimits) driver.Resources {
	return driver.Resources{CPUMilli: r.GetCpuMilli(), MemoryBytes: r.GetMemoryBytes(), DiskBytes: r.GetDiskBytes()}
}

// taskToProto converts a task. It returns an error if the configuration contains a value
// that a job file cannot contain.
func taskToProto(t driver.Task) (*nusav1.StartRunRequest, error) {
	config, err := structpb.NewStruct(t.Config)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	out := &nusav1.StartRunRequest{
		Id: idToProto(t.ID), Config: config, Env: t.Env, Dir: t.Dir, AllocDir: t.AllocDir, SecretsDir: t.SecretsDir, Limits: limitsToProto(t.Resources),
		LogFiles: int32(t.Logs.Files), LogSizeBytes: t.Logs.SizeBytes,
		LeaseDeadline: durationToProto(t.Lease.At), LeaseNumber: t.Lease.Number, StopGrace: durationToProto(t.StopGrace),
		KillSignal: int32(t.KillSignal), Gpus: t.GPUs,
	}
	for _, p := range t.Ports {
		out.Ports = append(out.Ports, &nusav1.RunPort{Label: p.Label, Host: int32(p.Host), To: int32(p.To)})
	}
	for _, v := range t.Volumes {
		out.Volumes = append(out.Volumes, &nusav1.RunVolume{Name: v.Name, Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly})
	}
	return out, nil
}

func taskFromProto(t *nusav1.StartRunRequest) driver.Task {
	out := driver.Task{
		ID: idFromProto(t.GetId()), Config: t.GetConfig().AsMap(), Env: t.GetEnv(), Dir: t.GetDir(), AllocDir: t.GetAllocDir(), SecretsDir: t.GetSecretsDir(), Resources: limitsFromProto(t.GetLimits()),
		Logs:  driver.LogBounds{Files: int(t.GetLogFiles()), SizeBytes: t.GetLogSizeBytes()},
		Lease: lease.Deadline{At: t.GetLeaseDeadline().AsDuration(), Number: t.GetLeaseNumber()}, StopGrace: t.GetStopGrace().AsDuration(),
		KillSignal: int(t.GetKillSignal()), GPUs: t.GetGpus(),
	}
	for _, p := range t.GetPorts() {
		out.Ports = append(out.Ports, driver.Port{Label: p.GetLabel(), Host: int(p.GetHost()), To: int(p.GetTo())})
	}
	for _, v := range t.GetVolumes() {
		out.Volumes = append(out.Volumes, driver.Volume{Name: v.GetName(), Source: v.GetSource(), Target: v.GetTarget(), ReadOnly: v.GetReadOnly()})
	}
	return out
}

var wireStates = map[driver.State]nusav1.RunState{
	driver.Starting: nusav1.RunState_RUN_STATE_STARTING,
	driver.Running:  nusav1.RunState_RUN_STATE_RUNNING,
	driver.Ended:    nusav1.RunState_RUN_STATE_ENDED,
}

var wireCauses = map[driver.Cause]nusav1.RunCause{
	driver.CauseExited:       nusav1.RunCause_RUN_CAUSE_UNSPECIFIED,
	driver.CauseStopped:      nusav1.RunCause_RUN_CAUSE_STOPPED,
	driver.CauseLeaseExpired: nusav1.RunCause_RUN_CAUSE_LEASE_EXPIRED,
	driver.CauseLateStart:    nusav1.RunCause_RUN_CAUSE_LATE_START,
	driver.CauseStartFailed:  nusav1.RunCause_RUN_CAUSE_START_FAILED,
	driver.CauseLost:         nusav1.RunCause_RUN_CAUSE_LOST,
}

func statusToProto(s driver.Status) *nusav1.RunStatus {
	return &nusav1.RunStatus{
		State: wireStates[s.State], Pid: int32(s.PID), Started: timeToProto(s.Started), Finished: timeToProto(s.Finished),
		ExitCode: int32(s.ExitCode), Signal: int32(s.Signal), Cause: wireCauses[s.Cause], Message: clip(s.Message, maxMessage),
		OutOfMemory: s.OutOfMemory,
	}
}

func statsToProto(s driver.Stats) *nusav1.RunStats {
	return &nusav1.RunStats{
		Cpu: durationpb.New(s.CPU), MemoryBytes: s.MemoryBytes, MemoryPeakBytes: s.MemoryPeakBytes,
		Processes: int32(min(s.Processes, math.MaxInt32)),
	}
}

func statsFromProto(s *nusav1.RunStats) driver.Stats {
	out := driver.Stats{CPU: -1, MemoryBytes: s.GetMemoryBytes(), MemoryPeakBytes: s.GetMemoryPeakBytes(), Processes: int(s.GetProcesses())}
	if s.GetCpu() != nil {
		out.CPU = s.GetCpu().AsDuration()
	}
	return out
}

func sizeToProto(w driver.WindowSize) *nusav1.TerminalSize {
	return &nusav1.TerminalSize{Columns: int32(w.Columns), Rows: int32(w.Rows)}
}

func sizeFromProto(w *nusav1.TerminalSize) driver.WindowSize {
	return driver.WindowSize{Columns: uint16(w.GetColumns()), Rows: uint16(w.GetRows())}
}
