// Package driver is the contract between the agent and an engine that runs
// tasks: processes, containers, virtual machines. Its suite of tests is in
// drivertest; a new engine is a folder beside it and an entry in the agent's
// configuration.
package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"time"
)

// Errors every driver uses, wrapped with what and where.
var (
	// ErrNotFound: the driver has never started a run of that ID, or it was
	// removed.
	ErrNotFound = errors.New("no such task run")
	// ErrInvalid: the task asks for something that this driver can never do; a
	// retry is useless.
	ErrInvalid = errors.New("task cannot run")
	// ErrNotAllowed: the node's operator did not allow it. Another node may.
	ErrNotAllowed = errors.New("not allowed on this node")
	// ErrStart: the task could not be started; a retry may help.
	ErrStart = errors.New("task did not start")
	// ErrFinal is an ErrStart, and reads like it, where a retry on this node is
	// useless although the driver can do what the task asks: a file is not the one
	// that was meant, a user is not known.
	ErrFinal error = finalError{}
	// ErrUnsupported: this engine, or this host, cannot do that; the missing
	// capability says so beforehand.
	ErrUnsupported = errors.New("not supported by this driver")
	// ErrNotRunning: it can only be done while the run runs.
	ErrNotRunning = errors.New("the task run is not running")
	// ErrUnavailable: the engine cannot be asked now, and what it runs goes on as
	// far as is known; a retry may help.
	ErrUnavailable = errors.New("the driver cannot be asked now")
	// ErrContract: the driver answered what no driver may, so nothing is known
	// about the run; a retry is useless.
	ErrContract = errors.New("the driver breaks its contract")
)

type finalError struct{}

func (finalError) Error() string { return ErrStart.Error() }

func (finalError) Is(target error) bool { return target == ErrStart }

// CommandError is an ErrStart of a further command, for the command's own fault.
type CommandError struct {
	// Code is what a shell ends with: 127 when there is no such command, 126 when
	// it cannot be executed.
	Code int
	// Text names the command.
	Text string
}

func (e *CommandError) Error() string { return e.Text }

// Is makes it an ErrStart.
func (e *CommandError) Is(target error) bool { return target == ErrStart }

// Exit codes of shells; see CommandError.
const (
	NotExecutable = 126
	NoCommand     = 127
)

// Capabilities a driver may report. What is not reported is not enforced.
const (
	// CapSelfFencing: a lease deadline ends the task also when the agent is dead.
	CapSelfFencing = "self_fencing"
	// CapCPULimit and CapMemoryLimit: Resources are limits, not only charges.
	CapCPULimit    = "cpu_limit"
	CapMemoryLimit = "memory_limit"
	// CapRecover: tasks outlive the agent and are adopted by the next one.
	CapRecover = "recover"
	// CapExec: Exec works; CapStats: Stats works; CapUpdate: Update changes the
	// limits of what runs.
	CapExec   = "exec"
	CapStats  = "stats"
	CapUpdate = "update"
	// CapVolumes: Volumes are there. CapMounts: as mounts, so that their Target
	// and ReadOnly hold. CapSecrets: the task sees SecretsDir, and nobody else
	// does.
	CapVolumes = "volumes"
	CapMounts  = "mounts"
	CapSecrets = "secrets"
	// CapUser: tasks run as another user than the agent's.
	CapUser = "user"
)

// Driver runs tasks. A run is named by its ID and starts at most once in the
// life of the data directory, whatever crashes in between. Every method is
// idempotent, is bounded by its context, and may be called concurrently.
type Driver interface {
	// Fingerprint looks at the host: is the engine there, what can it do.
	Fingerprint(ctx context.Context) Fingerprint
	// Start begins a run and returns once its command runs. A second Start of
	// the same ID does nothing and returns nil, also when the run has ended.
	// Errors wrap ErrInvalid or ErrStart; the run is then Ended or not found.
	Start(ctx context.Context, t Task) error
	// Status says how a run is doing; ErrNotFound if it never started. It is
	// also how a restarted agent adopts a run.
	Status(ctx context.Context, id ID) (Status, error)
	// Wait returns the final Status as soon as the run has ended.
	Wait(ctx context.Context, id ID) (Status, error)
	// Stop asks the run to end, kills everything of it after the grace and
	// returns once nothing of it is left. A run that ended or is unknown: nil.
	// After that nothing of it begins, of a Start that was cut off either: the
	// agent looks out for ten seconds more for one of a driver that breaks this.
	Stop(ctx context.Context, id ID, grace time.Duration) error
	// Renew moves the lease deadline of a run that was started with one. A
	// driver without CapSelfFencing returns ErrInvalid.
	Renew(ctx context.Context, id ID, deadline time.Duration) error
	// Logs emits the kept output, oldest first, in chunks of at most MaxChunk,
	// and ends: at once, or with Follow when the run has ended and all of its
	// output was emitted. An error of emit ends it and is returned.
	Logs(ctx context.Context, id ID, o LogOptions, emit func(LogChunk) error) error
	// Exec runs a further command where the task runs, with its environment, and
	// returns once that has ended; a command that cannot be started is ErrStart.
	// When ctx ends everything that it started is killed, and the error wraps the
	// context's. Errors: ErrNotFound, ErrNotRunning, ErrUnsupported.
	Exec(ctx context.Context, id ID, x Exec) (ExitStatus, error)
	// Stats is what a run uses now. Errors: ErrNotFound, ErrNotRunning,
	// ErrUnsupported.
	Stats(ctx context.Context, id ID) (Stats, error)
	// Update changes the limits of a run while it runs. Errors: ErrNotFound,
	// ErrNotRunning, ErrUnsupported.
	Update(ctx context.Context, id ID, r Resources) error
	// Size is how many bytes the kept output of a run takes. Unknown: 0.
	Size(ctx context.Context, id ID) (int64, error)
	// Remove forgets a run that has ended, with its logs. Unknown: nil.
	Remove(ctx context.Context, id ID) error
}

// Admitter is a Driver that can say, without its engine, what of a task this
// node's operator does not allow: such a task is declined before anything of it
// is made ready. Start refuses it too.
type Admitter interface {
	// Admit is nil, or wraps ErrNotAllowed and names the field and the setting.
	// What else is wrong with the task is not its business.
	Admit(t Task) error
}

// ID names one run of one task of one allocation: a restart is another run.
type ID struct {
	Alloc string // UUID
	Task  string
	Run   int // from 1
}

// String is "alloc/task/run".
func (id ID) String() string { return fmt.Sprintf("%s/%s/%d", id.Alloc, id.Task, id.Run) }

// Fingerprint is what a driver says about itself on this host.
type Fingerprint struct {
	Healthy bool
	Version string
	// Message says why it is not healthy, or what is not enforced.
	Message string
	// Capabilities are the Cap constants, sorted.
	Capabilities []string
}

// Task is all that a driver needs for one run. Variables are expanded.
type Task struct {
	ID ID
	// Config is the driver's own part of the job file; unknown keys are
	// ErrInvalid.
	Config map[string]any
	// Env is complete but for what the engine itself adds. May hold secrets:
	// never in a command line or a file that others can read.
	Env map[string]string
	// Dir is the task's working folder; AllocDir is shared by the allocation's
	// tasks. Both exist and are absolute. An engine with a file system of its own
	// shows them under the same paths, and SecretsDir ("" = none), which is in
	// memory, at ContainerSecrets, read-only.
	Dir, AllocDir, SecretsDir string
	Resources                 Resources
	Ports                     []Port
	Volumes                   []Volume
	Logs                      LogBounds
	// LeaseDeadline on CLOCK_BOOTTIME (the agent's Config.Clock): at this time
	// whatever supervises the run asks it to end, and kills it StopGrace later:
	// a master waits for both before it replaces the instance. 0 = no lease.
	LeaseDeadline time.Duration
	StopGrace     time.Duration
}

// ContainerSecrets is where a task with a file system of its own finds its
// secrets.
const ContainerSecrets = "/run/nusa/secrets"

// Resources the run is charged for; a limit where the driver can.
type Resources struct {
	CPUMilli    int64 // thousandths of a core, 0 = no limit
	MemoryBytes int64 // 0 = no limit
	DiskBytes   int64
}

// Port is a host port given to the run.
type Port struct {
	Label string
	Host  int // on the node
	To    int // inside the task's network, where it has one of its own
}

// Volume is a host path given to the run.
type Volume struct {
	Name     string
	Source   string // absolute host path
	Target   string // absolute path inside the task; "" = AllocDir/Name
	ReadOnly bool
}

// TargetOf is where a task sees one of its volumes.
func (t Task) TargetOf(v Volume) string {
	if v.Target != "" {
		return v.Target
	}
	return filepath.Join(t.AllocDir, v.Name)
}

// LogBounds limit each of stdout and stderr.
type LogBounds struct {
	Files     int   // 1..100
	SizeBytes int64 // of a file, at least 4096
}

// State of a run; it only advances.
type State int

// The states of a run.
const (
	Starting State = iota + 1
	Running
	Ended
)

// String is the state's lower-case name.
func (s State) String() string {
	switch s {
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Ended:
		return "ended"
	}
	return fmt.Sprintf("state(%d)", int(s))
}

// OutOfMemory is the message of a run that the kernel ended at its limit, with
// the limit in MiB, as job files have it.
func OutOfMemory(limitBytes int64) string {
	mib := strconv.FormatFloat(math.Round(float64(limitBytes)/(1<<20)*10)/10, 'f', -1, 64)
	return "out of memory: the limit is " + mib + " MiB"
}

// Cause says why a run ended, where it was not the command's own doing.
type Cause string

// The causes.
const (
	CauseExited       Cause = ""              // by itself
	CauseStopped      Cause = "stopped"       // Stop was called
	CauseLeaseExpired Cause = "lease_expired" // its deadline passed
	CauseStartFailed  Cause = "start_failed"  // the command could not be started
	CauseLost         Cause = "lost"          // its supervisor vanished; the exit code is unknown
	CauseRebooted     Cause = "host_rebooted" // so did the host; the exit code is unknown
)

// Status of a run.
type Status struct {
	State State
	// PID of the command on the host, 0 where there is none.
	PID     int
	Started time.Time
	// The rest is valid once Ended.
	Finished time.Time
	ExitCode int
	Signal   int // that ended it, 0 = none
	Cause    Cause
	Message  string
}

// StartError is what Start returns of a run with this status: ErrStart if it
// could not be started, else nil.
func (s Status) StartError() error {
	if s.Cause == CauseStartFailed {
		return fmt.Errorf("%w: %s", ErrStart, s.Message)
	}
	return nil
}

// Exec is a further command in a running task.
type Exec struct {
	Command []string // at least one word
	// TTY gives it a terminal of that size; Stderr is then not used.
	TTY  bool
	Size WindowSize
	// Resize is received from until the command has ended; may be nil.
	Resize <-chan WindowSize
	// Stdin may be nil: the command reads end of file. A reader that blocks does
	// not keep Exec from returning.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// WindowSize of a terminal in characters.
type WindowSize struct{ Columns, Rows uint16 }

// ExitStatus is how a command ended.
type ExitStatus struct {
	Code   int // 128 + the signal where one ended it, as shells count
	Signal int // that ended it, 0 = none or not known
}

// Stats are what a run uses. What an engine does not tell is negative.
type Stats struct {
	// CPU time used since the run started.
	CPU time.Duration
	// MemoryBytes in use, without the page cache where that can be told apart,
	// and the most there was.
	MemoryBytes, MemoryPeakBytes int64
	Processes                    int
}

// MaxChunk is the greatest LogChunk in bytes.
const MaxChunk = 32 << 10

// MaxTailLines is the most lines that can be asked for from the end: an engine
// that can only be read from the beginning keeps a number for each.
const MaxTailLines = 100_000

// LogOptions select output.
type LogOptions struct {
	Stdout, Stderr bool
	Follow         bool
	// TailBytes from the end of each stream; 0 = all that is kept.
	TailBytes int64
	// TailLines is the same in lines, 0..MaxTailLines: what stands after the last
	// end of a line is one. At most one of the two is set.
	TailLines int
}

// LogChunk is a piece of output. Data is valid only during the call of emit.
type LogChunk struct {
	Stderr bool
	Data   []byte
}
