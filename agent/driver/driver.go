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

	"github.com/nusa-scheduler/nusa/agent/lease"
)

// Errors of every driver. A driver wraps them with what failed and where.
var (
	// ErrNotFound: the driver never started this run, or the run was removed.
	ErrNotFound = errors.New("no such task run")
	// ErrInvalid: this driver can never do what the task asks for. A retry is
	// useless.
	ErrInvalid = errors.New("task cannot run")
	// ErrNotAllowed: the node's operator did not allow what the task asks for. Another
	// node may allow it.
	ErrNotAllowed = errors.New("not allowed on this node")
	// ErrStart: the task could not be started. A retry may help.
	ErrStart = errors.New("task did not start")
	// ErrFinal is an ErrStart with the same text: a retry on this node is useless
	// although the driver can do what the task asks. Examples are a file with
	// another checksum and an unknown user.
	ErrFinal error = finalError{}
	// ErrUnsupported: this engine or this host does not have the operation. The driver
	// does not report the capability, so that this is known beforehand.
	ErrUnsupported = errors.New("not supported by this driver")
	// ErrNotRunning: the operation needs a running run.
	ErrNotRunning = errors.New("the task run is not running")
	// ErrUnavailable: the engine does not answer now. Its runs probably go on. A retry may
	// help.
	ErrUnavailable = errors.New("the driver cannot be asked now")
	// ErrContract: the driver's answer breaks the contract, so nothing is known
	// about the run. A retry is useless.
	ErrContract = errors.New("the driver breaks its contract")
)

type finalError struct{}

func (finalError) Error() string { return ErrStart.Error() }

func (finalError) Is(target error) bool { return target == ErrStart }

// CommandError is the ErrStart of a further command that cannot be started by its own fault.
type CommandError struct {
	// Code is the exit code that a shell would return: 127 if there is no such command,
	// 126 if it cannot be executed.
	Code int
	// Text names the command.
	Text string
}

func (e *CommandError) Error() string { return e.Text }

// Is reports that the error is an ErrStart.
func (e *CommandError) Is(target error) bool { return target == ErrStart }

// Exit codes of shells, for CommandError.
const (
	NotExecutable = 126
	NoCommand     = 127
)

// Capabilities that a driver may report. A capability that is not reported is not
// enforced.
const (
	// CapSelfFencing: a lease deadline ends the task even if the agent is dead.
	CapSelfFencing = "self_fencing"
	// CapCPULimit and CapMemoryLimit: Resources are enforced as limits, and not only
	// counted by the scheduler.
	CapCPULimit    = "cpu_limit"
	CapMemoryLimit = "memory_limit"
	// CapRecover: tasks outlive the agent, and the next agent adopts them.
	CapRecover = "recover"
	// CapExec: Exec works. CapStats: Stats works. CapUpdate: Update changes the
	// limits of a running run.
	CapExec   = "exec"
	CapStats  = "stats"
	CapUpdate = "update"
	// CapVolumes: the task sees its Volumes. CapMounts: volumes are mounts, so their
	// Target and ReadOnly are honoured. CapSecrets: the task, and no other program, sees
	// SecretsDir.
	CapVolumes = "volumes"
	CapMounts  = "mounts"
	CapSecrets = "secrets"
	// CapUser: tasks can run as another user than the agent's.
	CapUser = "user"
)

// Driver runs tasks. An ID names a run, which starts at most once in the life of
// the data directory, even across crashes. Every method is idempotent, is bounded
// by its context, and may be called concurrently.
type Driver interface {
	// Fingerprint inspects the host: whether the engine answers, and what it can
	// do.
	Fingerprint(ctx context.Context) Fingerprint
	// Start begins a run and returns once its command runs. A second Start of the
	// same ID does nothing and returns nil, even if the run has ended. Errors wrap
	// ErrInvalid or ErrStart; the run is then Ended or not found. The command is never
	// started after its lease deadline, also if the start takes long: then the run ends
	// with CauseLateStart, and Start returns nil.
	Start(ctx context.Context, t Task) error
	// Status returns the state of a run, or ErrNotFound if the run never started. A
	// restarted agent adopts a run by its Status.
	Status(ctx context.Context, id ID) (Status, error)
	// Wait returns the final Status as soon as the run has ended.
	Wait(ctx context.Context, id ID) (Status, error)
	// Stop asks the run to end, kills all its processes after the grace, and returns once
	// no process is left. An ended or unknown run: nil. After Stop no part of the run
	// begins, not even by an interrupted Start. Because a driver may break this rule, the
	// agent asks for the run's status for ten more seconds.
	Stop(ctx context.Context, id ID, grace time.Duration) error
	// Renew moves the lease deadline of a run, also of one whose Start has not returned.
	// The deadline with the greatest number counts, in whatever order the calls arrive; it may
	// be earlier than the one before. A driver without CapSelfFencing returns ErrInvalid.
	Renew(ctx context.Context, id ID, d lease.Deadline) error
	// Logs emits the retained output, oldest first, in chunks of at most MaxChunk bytes.
	// It returns at the present end of the output. With Follow it returns when the run
	// has ended and all its output was emitted. If emit fails, Logs returns that error
	// at once.
	Logs(ctx context.Context, id ID, o LogOptions, emit func(LogChunk) error) error
	// Exec runs a further command in the task, with the task's environment, and
	// returns when the command has ended. A command that cannot be started is an
	// ErrStart. When ctx ends, all processes of the command are killed and the
	// error wraps the context's. Errors: ErrNotFound, ErrNotRunning,
	// ErrUnsupported.
	Exec(ctx context.Context, id ID, x Exec) (ExitStatus, error)
	// Stats returns the resources that a run uses now. Errors: ErrNotFound,
	// ErrNotRunning, ErrUnsupported.
	Stats(ctx context.Context, id ID) (Stats, error)
	// Update changes the limits of a running run. Errors: ErrNotFound,
	// ErrNotRunning, ErrUnsupported.
	Update(ctx context.Context, id ID, r Resources) error
	// Size returns the size of a run's retained output in bytes. Unknown: 0.
	Size(ctx context.Context, id ID) (int64, error)
	// Remove forgets a run that has ended, with its output. An unknown run: nil.
	Remove(ctx context.Context, id ID) error
}

// Admitter is a Driver that knows without its engine which tasks this node's operator
// does not allow. The agent declines a task that Admit refuses before it prepares the
// task. Start refuses the task too.
type Admitter interface {
	// Admit returns nil, or wraps ErrNotAllowed and names the field and the
	// setting. It ignores all other problems of the task.
	Admit(t Task) error
}

// ID names one run of one task of one allocation. A restart is another run.
type ID struct {
	Alloc string // UUID
	Task  string
	Run   int // number of the run, from 1
}

// String returns "alloc/task/run".
func (id ID) String() string { return fmt.Sprintf("%s/%s/%d", id.Alloc, id.Task, id.Run) }

// Fingerprint is a driver's report about itself on this host.
type Fingerprint struct {
	Healthy bool
	Version string
	// Message says why the driver is unhealthy, or which limits are not enforced.
	Message string
	// Capabilities are the Cap constants, sorted.
	Capabilities []string
}

// Task holds everything that a driver needs for one run. Its variables are
// expanded.
type Task struct {
	ID ID
	// Config is the driver's own part of the job file. Unknown keys are ErrInvalid.
	Config map[string]any
	// Env is complete except for the variables of the engine. It may hold secrets,
	// so it never appears in a command line or in a file that other users can read.
	Env map[string]string
	// Dir is the task's working folder. AllocDir is shared by the allocation's
	// tasks. Both exist and are absolute. SecretsDir is in memory; "" means none.
	// An engine with a file system of its own shows Dir and AllocDir under the same
	// paths, and SecretsDir read-only at ContainerSecrets.
	Dir, AllocDir, SecretsDir string
	Resources                 Resources
	Ports                     []Port
	Volumes                   []Volume
	Logs                      LogBounds
	// Lease is the deadline on CLOCK_BOOTTIME (the agent's Config.Clock). At that time
	// the run's supervisor asks the run to end, and kills it StopGrace later. A
	// master waits for both before it replaces the instance.
	Lease     lease.Deadline
	StopGrace time.Duration
}

// ContainerSecrets is the folder of secrets in a task with a file system of its
// own.
const ContainerSecrets = "/run/nusa/secrets"

// Resources that a run is charged for. They are also limits if the driver can enforce
// them.
type Resources struct {
	CPUMilli    int64 // thousandths of a core, 0 = no limit
	MemoryBytes int64 // 0 = no limit
	DiskBytes   int64
}

// Port is a host port given to the run.
type Port struct {
	Label string
	Host  int // on the node
	To    int // inside the task's network, if it has its own
}

// Volume is a host path given to the run.
type Volume struct {
	Name     string
	Source   string // absolute host path
	Target   string // absolute path inside the task; "" = AllocDir/Name
	ReadOnly bool
}

// TargetOf returns the path at which a task sees one of its volumes.
func (t Task) TargetOf(v Volume) string {
	if v.Target != "" {
		return v.Target
	}
	return filepath.Join(t.AllocDir, v.Name)
}

// LogBounds limit each of stdout and stderr.
type LogBounds struct {
	Files     int   // 1..100
	SizeBytes int64 // size of one file, at least 4096
}

// State of a run. It only advances.
type State int

// The states of a run.
const (
	Starting State = iota + 1
	Running
	Ended
)

// String returns the state's lower-case name.
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

// OutOfMemory returns the message of a run that the kernel killed at its memory
// limit. The limit is in MiB, like in job files.
func OutOfMemory(limitBytes int64) string {
	mib := strconv.FormatFloat(math.Round(float64(limitBytes)/(1<<20)*10)/10, 'f', -1, 64)
	return "out of memory: the limit is " + mib + " MiB"
}

// Cause says why a run ended, if the command did not end by itself.
type Cause string

// The causes.
const (
	CauseExited       Cause = ""              // the command ended by itself
	CauseStopped      Cause = "stopped"       // Stop was called
	CauseLeaseExpired Cause = "lease_expired" // the lease deadline passed
	CauseLateStart    Cause = "late_start"    // the lease deadline passed before the command was started
	CauseStartFailed  Cause = "start_failed"  // the command could not be started
	CauseLost         Cause = "lost"          // its supervisor vanished; the exit code is unknown
	CauseRebooted     Cause = "host_rebooted" // the host restarted; the exit code is unknown
)

// Status of a run.
type Status struct {
	State State
	// PID of the command on the host. 0: none.
	PID     int
	Started time.Time
	// The following fields are valid once the run has Ended.
	Finished time.Time
	ExitCode int
	Signal   int // the signal that ended the command; 0: none
	Cause    Cause
	Message  string
}

// StartError returns the error of Start for a run with this status: ErrStart if the
// run could not be started, else nil.
func (s Status) StartError() error {
	if s.Cause == CauseStartFailed {
		return fmt.Errorf("%w: %s", ErrStart, s.Message)
	}
	return nil
}

// Exec is a further command in a running task.
type Exec struct {
	Command []string // at least one word
	// TTY gives the command a terminal of this size. Stderr is then not used.
	TTY  bool
	Size WindowSize
	// Resize delivers new sizes until the command has ended. It may be nil.
	Resize <-chan WindowSize
	// Stdin may be nil: the command then reads end of file. Exec returns even if a read
	// of Stdin blocks.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// WindowSize of a terminal in characters.
type WindowSize struct{ Columns, Rows uint16 }

// ExitStatus is how a command ended.
type ExitStatus struct {
	Code   int // like a shell: 128 + the signal that ended the command
	Signal int // the signal that ended the command; 0: none or unknown
}

// Stats are the resources that a run uses. A value that the engine does not report
// is negative.
type Stats struct {
	// CPU time used since the run started.
	CPU time.Duration
	// MemoryBytes in use, without the page cache if the engine reports it
	// separately, and the peak.
	MemoryBytes, MemoryPeakBytes int64
	Processes                    int
}

// MaxChunk bounds a LogChunk, in bytes.
const MaxChunk = 32 << 10

// MaxTailLines bounds the lines of a tail. An engine that can only be read from the
// beginning stores one number for each line.
const MaxTailLines = 100_000

// LogOptions select output.
type LogOptions struct {
	Stdout, Stderr bool
	Follow         bool
	// TailBytes from the end of each stream. 0: all of the retained output.
	TailBytes int64
	// TailLines from the end of each stream, 0..MaxTailLines. Text after the last line
	// break counts as a line. TailBytes and TailLines are not both set.
	TailLines int
}

// LogChunk is a piece of output. Data is valid only during the call of emit.
type LogChunk struct {
	Stderr bool
	Data   []byte
}
