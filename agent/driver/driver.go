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
	"github.com/nusa-scheduler/nusa/job/config"
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
	// ErrImage is an ErrInvalid with the same text: the image does not exist, or does not
	// fit this node.
	ErrImage error = imageError{ErrInvalid}
	// ErrImageFetch is an ErrStart with the same text: the image could not be fetched.
	ErrImageFetch error = imageError{ErrStart}
	// ErrUnsupported: this engine or this host does not have the operation. The driver's
	// fingerprint lacks the capability of that operation, so a caller can know beforehand.
	ErrUnsupported = errors.New("not supported by this driver")
	// ErrNotRunning: the operation needs a running run.
	ErrNotRunning = errors.New("the task run is not running")
	// ErrUnavailable: the engine does not respond now. The run probably continues. A retry
	// may help.
	ErrUnavailable = errors.New("the driver does not respond now")
	// ErrContract: the result of the driver breaks the contract of this package, so nothing
	// is known about the run. A retry is useless.
	ErrContract = errors.New("the driver breaks its contract")
)

type finalError struct{}

func (finalError) Error() string { return ErrStart.Error() }

func (finalError) Is(target error) bool { return target == ErrStart }

type imageError struct{ kind error }

func (e imageError) Error() string { return e.kind.Error() }

func (e imageError) Is(target error) bool { return target == e.kind }

// NoImage returns an error with the text of err that is an ErrFinal and an ErrImageFetch.
func NoImage(err error) error { return noImage{err} }

type noImage struct{ error }

func (e noImage) Unwrap() error { return e.error }

func (noImage) Is(target error) bool { return target == ErrFinal || target == ErrImageFetch }

// CommandError is the ErrStart of a command that Exec cannot start because the command
// itself is wrong.
type CommandError struct {
	// Code is the exit code that a shell would return: 127 if the command does not exist,
	// 126 if it cannot be executed.
	Code int
	// Text is the message for people. It names the command.
	Text string
}

func (e *CommandError) Error() string { return e.Text }

// Is reports that the error is an ErrStart.
func (e *CommandError) Is(target error) bool { return target == ErrStart }

// The exit codes of shells that CommandError uses.
const (
	NotExecutable = 126
	NoCommand     = 127
)

// Capabilities that a driver may report. The agent relies only on reported capabilities.
const (
	// CapSelfFencing: a lease deadline ends the task even if the agent is dead.
	CapSelfFencing = "self_fencing"
	// CapCPULimit and CapMemoryLimit: the driver enforces Resources as limits. Otherwise
	// only the scheduler counts them.
	CapCPULimit    = "cpu_limit"
	CapMemoryLimit = "memory_limit"
	// CapRecover: tasks outlive the agent, and the next agent adopts them.
	CapRecover = "recover"
	// CapExec: the method Exec works. CapStats: the method Stats works. CapUpdate: the
	// method Update changes the limits of a running run. CapSignal: the method Signal works.
	CapExec   = "exec"
	CapStats  = "stats"
	CapUpdate = "update"
	CapSignal = "signal"
	// CapVolumes: the task sees its Volumes. CapMounts: volumes are mounts, so the driver
	// honours their Target and ReadOnly. CapSecrets: the task sees SecretsDir, and no other
	// program does.
	CapVolumes = "volumes"
	CapMounts  = "mounts"
	CapSecrets = "secrets"
	// CapUser: tasks can run as another user than the agent's.
	CapUser = "user"
	// CapKillSignal: the driver honours Task.KillSignal.
	CapKillSignal = "kill_signal"
	// CapGPU: the driver gives a run the accelerators in Task.GPUs.
	CapGPU = "gpu"
	// CapGPUShare: several runs may have the same accelerator, each a part of it. The device
	// switches between them. The driver does not enforce the parts.
	CapGPUShare = "gpu_share"
	// CapLifecycle: the agent starts and stops the tasks of a group in their order. No driver
	// reports it: the agent adds it to each driver. An agent of an earlier version does not, so it
	// gets no job that needs the order.
	CapLifecycle = "lifecycle"
	// CapLiveResources: the agent gives running tasks other resources. It adds the capability to each
	// driver that has CapUpdate. An agent of an earlier version has the driver, but does not ask it.
	CapLiveResources = "live_resources"
)

// Driver runs tasks. An ID names a run. A run starts at most once in the life of the data
// directory, even across crashes. Every method is idempotent, returns when its context
// ends, and may be called concurrently.
type Driver interface {
	// Fingerprint inspects the host. It reports whether the engine responds and what the
	// engine can do.
	Fingerprint(ctx context.Context) Fingerprint
	// Start begins a run and returns once its command runs. A second Start of the same ID
	// does nothing and returns nil, even if the run has ended. Errors wrap ErrInvalid or
	// ErrStart, and then the run is Ended or not found. The command never starts after its
	// lease deadline. If the start takes longer than that, the run ends with
	// CauseLateStart, and Start returns nil.
	Start(ctx context.Context, t Task) error
	// Status returns the state of a run, or ErrNotFound if the run never started. A
	// restarted agent adopts each run whose Status it gets.
	Status(ctx context.Context, id ID) (Status, error)
	// Wait returns the final Status as soon as the run has ended.
	Wait(ctx context.Context, id ID) (Status, error)
	// Stop asks the run to end, kills all its processes when the grace time has passed, and
	// returns once no process is left. For an ended or unknown run Stop returns nil. After
	// Stop no part of the run begins, not even by an interrupted Start. Because a driver
	// may break this rule, the agent asks for the run's status for ten more seconds.
	Stop(ctx context.Context, id ID, grace time.Duration) error
	// Renew moves the lease deadline of a run, also of a run whose Start has not returned.
	// The deadline with the greatest number counts, whatever the order of the calls. That
	// deadline may be earlier than the previous one. A driver without CapSelfFencing
	// returns ErrInvalid.
	Renew(ctx context.Context, id ID, d lease.Deadline) error
	// Logs emits the retained output, oldest first, in chunks of at most MaxChunk bytes.
	// Without Follow it returns at the present end of the output. With Follow it returns
	// when the run has ended and all its output was emitted. If emit fails, Logs returns
	// that error at once.
	Logs(ctx context.Context, id ID, o LogOptions, emit func(LogChunk) error) error
	// Exec runs a further command in the task, with the task's environment, and returns
	// when the command has ended. The error for a command that cannot be started is an
	// ErrStart. When ctx ends, all processes of the command are killed, and the error wraps
	// the error of ctx. Other errors: ErrNotFound, ErrNotRunning, ErrUnsupported.
	Exec(ctx context.Context, id ID, x Exec) (ExitStatus, error)
	// Stats returns the resources that a run uses now. Errors: ErrNotFound,
	// ErrNotRunning, ErrUnsupported.
	Stats(ctx context.Context, id ID) (Stats, error)
	// Update changes the limits of a running run. Errors: ErrNotFound,
	// ErrNotRunning, ErrUnsupported.
	Update(ctx context.Context, id ID, r Resources) error
	// Signal sends a signal, 1..64, to the first process of a running run. Errors:
	// ErrNotFound, ErrNotRunning, ErrUnsupported.
	Signal(ctx context.Context, id ID, signal int) error
	// Size returns the size of a run's retained output in bytes, or 0 if the size is
	// unknown.
	Size(ctx context.Context, id ID) (int64, error)
	// Remove forgets a run that has ended, and deletes its output. For an unknown run
	// Remove returns nil.
	Remove(ctx context.Context, id ID) error
}

// Admitter is a Driver that knows, without its engine, which tasks the operator of this
// node does not allow. The agent calls Admit before it prepares a task, and declines a task
// that Admit refuses. Start refuses such a task too.
type Admitter interface {
	// Admit returns nil, or an error that wraps ErrNotAllowed and names the field and the
	// setting. Admit ignores all other problems of the task.
	Admit(t Task) error
}

// Lister is a Driver that knows, without its engine, which runs it has. The agent compares them
// with its records.
type Lister interface {
	// Runs returns the runs that were started and not removed, in any order.
	Runs(ctx context.Context) ([]ID, error)
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
	// Config is the form of Task.Config, so that a region can refuse a job early. nil: the driver
	// checks it alone. The agent reads it only from plugins.
	Config config.Schema
}

// Task holds everything that a driver needs for one run. The variables in its texts are
// already expanded.
type Task struct {
	ID ID
	// Config is the part of the job file that only the driver reads. Unknown keys are an
	// ErrInvalid.
	Config map[string]any
	// Env is complete, except for variables that the engine adds. Env may hold secrets, so
	// it must not appear in a command line or in a file that other users can read.
	Env map[string]string
	// Dir is the task's working folder. AllocDir is shared by the tasks of the allocation.
	// Both are existing folders with absolute paths. SecretsDir is in memory, and "" means
	// that the task has no secrets. An engine with its own file system shows Dir and
	// AllocDir at the same paths, and SecretsDir read-only at ContainerSecrets.
	Dir, AllocDir, SecretsDir string
	Resources                 Resources
	Ports                     []Port
	Volumes                   []Volume
	Logs                      LogBounds
	// Lease is the deadline of the run on CLOCK_BOOTTIME (the agent's Config.Clock). At
	// that time the run's supervisor asks the run to end. StopGrace later it kills the run.
	// A master waits until both times have passed before it replaces the instance.
	Lease     lease.Deadline
	StopGrace time.Duration
	// GPUs are the UUIDs of the accelerators of this run. Other runs have none of them, unless the
	// run has a part of one.
	GPUs []string
	// KillSignal is the signal that asks the run to end, 1..64. 0 means the stop signal of the
	// image, or SIGTERM without one.
	KillSignal int
}

// ContainerSecrets is the folder of secrets in a task that has its own file system.
const ContainerSecrets = "/run/nusa/secrets"

// Resources are what the scheduler reserves for a run. They are also limits if the driver
// can enforce them.
type Resources struct {
	CPUMilli    int64 // thousandths of a core, 0 = no limit
	MemoryBytes int64 // 0 = no limit
	DiskBytes   int64
}

// Port is a host port that is reserved for the run.
type Port struct {
	Label string
	Host  int // on the node
	To    int // inside the task's network, if it has its own
}

// Volume is a host folder that the run may use.
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

// LogBounds bound the output files of a run, separately for stdout and stderr.
type LogBounds struct {
	Files     int   // 1..100
	SizeBytes int64 // size of one file, at least 4096
}

// State is the state of a run. It only advances.
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

// OutOfMemory returns the message of a run that the kernel killed at its memory limit. The
// message has the limit in MiB, like job files.
func OutOfMemory(limitBytes int64) string {
	mib := strconv.FormatFloat(math.Round(float64(limitBytes)/(1<<20)*10)/10, 'f', -1, 64)
	return "out of memory: the limit is " + mib + " MiB"
}

// Category is the kind of a failure. Retry policies of jobs read it. It is the name of the
// protocol's FailureCategory in lower case.
type Category string

// The categories that drivers and their errors have.
const (
	// CategoryApp: the command ended by itself, or its checks failed.
	CategoryApp Category = "app"
	// CategoryOOM: the run used more memory than its limit.
	CategoryOOM Category = "oom"
	// CategoryImage: the image does not exist, does not fit, or could not be fetched.
	CategoryImage Category = "image"
	// CategoryConfig: the driver or the node cannot run what the task asks for.
	CategoryConfig Category = "config"
	// CategoryStart: the task could not be prepared or started for another reason.
	CategoryStart Category = "start"
)

// CategoryOf returns the category of an error of Start. permanent reports that another
// Start on this node would fail, too.
func CategoryOf(err error) (c Category, permanent bool) {
	permanent = errors.Is(err, ErrInvalid) || errors.Is(err, ErrFinal) || errors.Is(err, ErrContract)
	switch {
	case errors.Is(err, ErrImage) || errors.Is(err, ErrImageFetch):
		return CategoryImage, permanent
	case permanent:
		return CategoryConfig, true
	}
	return CategoryStart, false
}

// Cause says why a run ended. It is empty if the command ended by itself.
type Cause string

// The causes.
const (
	CauseExited       Cause = ""              // the command ended by itself
	CauseStopped      Cause = "stopped"       // Stop was called
	CauseLeaseExpired Cause = "lease_expired" // the lease deadline passed
	CauseLateStart    Cause = "late_start"    // the lease deadline passed before the command was started
	CauseStartFailed  Cause = "start_failed"  // the command could not be started
	CauseLost         Cause = "lost"          // the run's supervisor vanished; the exit code is unknown
	CauseRebooted     Cause = "host_rebooted" // the host restarted; the exit code is unknown
)

// Status describes a run.
type Status struct {
	State State
	// PID is the process id of the command on the host, or 0 if the driver knows none.
	PID     int
	Started time.Time
	// The following fields are valid once the run has Ended.
	Finished time.Time
	ExitCode int
	Signal   int // the signal that ended the command; 0: none
	Cause    Cause
	Message  string
	// Final says that another attempt to start the run would fail, too. It is set only with
	// CauseStartFailed.
	Final bool `json:",omitempty"`
	// OutOfMemory says that the kernel killed the run at its memory limit.
	OutOfMemory bool `json:",omitempty"`
}

// StartError returns the error of Start for a run with this status: ErrStart or ErrFinal if
// the run could not be started, else nil.
func (s Status) StartError() error {
	switch {
	case s.Cause == CauseStartFailed && s.Final:
		return fmt.Errorf("%w: %s", ErrFinal, s.Message)
	case s.Cause == CauseStartFailed:
		return fmt.Errorf("%w: %s", ErrStart, s.Message)
	}
	return nil
}

// Exec describes a further command in a running task.
type Exec struct {
	Command []string // at least one word
	// TTY gives the command a terminal of size Size. Then Stderr is not used.
	TTY  bool
	Size WindowSize
	// Resize delivers new sizes until the command has ended. It may be nil.
	Resize <-chan WindowSize
	// Stdin is the input of the command. If Stdin is nil, the command reads end of file.
	// Exec returns even if a read of Stdin blocks.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// WindowSize is the size of a terminal in characters.
type WindowSize struct{ Columns, Rows uint16 }

// ExitStatus says how a command ended.
type ExitStatus struct {
	Code   int // like a shell: 128 + the signal that ended the command
	Signal int // the signal that ended the command; 0: none or unknown
}

// Stats are the resources that a run uses. A value that the engine does not report
// is negative.
type Stats struct {
	// CPU is the CPU time since the run started.
	CPU time.Duration
	// MemoryBytes is the memory in use, without the page cache if the engine reports that
	// separately. MemoryPeakBytes is the greatest value so far.
	MemoryBytes, MemoryPeakBytes int64
	Processes                    int
}

// MaxChunk bounds a LogChunk, in bytes.
const MaxChunk = 32 << 10

// MaxTailLines bounds LogOptions.TailLines. For an engine whose output can only be read
// from the beginning, the driver stores one number for each of these lines.
const MaxTailLines = 100_000

// LogOptions select the output that Logs emits.
type LogOptions struct {
	Stdout, Stderr bool
	Follow         bool
	// TailBytes is the number of bytes from the end of each stream. 0 means the whole
	// retained output.
	TailBytes int64
	// TailLines is the number of lines from the end of each stream, 0..MaxTailLines. Text
	// after the last line break counts as a line. TailLines and TailBytes exclude each
	// other.
	TailLines int
}

// LogChunk is a piece of output. Data is valid only until emit returns.
type LogChunk struct {
	Stderr bool
	Data   []byte
}
