package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// The files in the folder of a run. The folder has the mode 0700, and the files have 0600.
const (
	specFile   = "spec.json"
	statusFile = "status.json"
	lockFile   = "lock"
	socketFile = "sock"
	// logFile has a supervisor's own messages, which are rare. The lock file is used for
	// them, because each further file of a task costs the file system some work.
	logFile = lockFile
)

// Box is the folder name of a run whose folder a container shares. A container can write
// anything into such a folder, so the agent never kills a process or cgroup that a file
// there names.
const Box = "box"

func shared(dir string) bool { return filepath.Base(dir) == Box }

// Spec is the specification of a supervisor's command.
type Spec struct {
	// Argv is the command with its arguments. Argv[0] is looked up in the PATH of Env
	// unless it has a slash.
	Argv []string `json:"argv"`
	// Env are the variables as KEY=value. They may hold secrets, so they are stored only in
	// the spec file, which has the mode 0600.
	Env []string `json:"env"`
	Dir string   `json:"dir"`
	// User is the user of the command. "" means the agent's user. Own is a folder that the
	// supervisor gives to that user. "" means none. Dir is never given to the user, because
	// Dir may be any folder of the host.
	User string `json:"user,omitempty"`
	Own  string `json:"own,omitempty"`
	// LogFiles and LogSizeBytes bound the output files, separately for stdout and stderr.
	LogFiles     int   `json:"log_files"`
	LogSizeBytes int64 `json:"log_size_bytes"`
	// LeaseDeadline is the deadline on CLOCK_BOOTTIME. 0 means none. StopGrace is the time
	// from the deadline to the kill.
	LeaseDeadline time.Duration `json:"lease_deadline,omitempty"`
	// LeaseNumber is the number of the deadline (lease.Deadline).
	LeaseNumber uint64        `json:"lease_number,omitempty"`
	StopGrace   time.Duration `json:"stop_grace"`
	// KillSignal is the signal that asks the command to end. 0 means SIGTERM.
	KillSignal int    `json:"kill_signal,omitempty"`
	Limits     Limits `json:"limits"`
	// Ulimits maps the name of a limit, as in the ulimit command, to the limit.
	Ulimits map[string]Ulimit `json:"ulimits,omitempty"`
	// View is the part of the host's files that the command sees. nil means all files, as
	// for the agent.
	View *View `json:"view,omitempty"`
	// Contained says that the supervisor is the first process of a container.
	Contained bool `json:"contained,omitempty"`
}

// Limits are the limits of a run. Cgroups enforce them if Cgroup is set.
type Limits struct {
	// Cgroup is the name of the run's cgroup below the agent's cgroups. "" means that
	// nothing is limited.
	Cgroup      string `json:"cgroup,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	CPUMilli    int64  `json:"cpu_milli,omitempty"`
	// HardCPU makes CPUMilli a hard limit of the CPU time. Without HardCPU, CPUMilli is a
	// share that counts only under contention.
	HardCPU bool `json:"hard_cpu,omitempty"`
}

// record is the content of the status file: the status of the run, and the data by which
// the remaining processes are found after the supervisor was killed.
type record struct {
	driver.Status
	// Session is the supervisor's process id. Group is the process id of the command.
	Session int    `json:"session"`
	Group   int    `json:"group"`
	Boot    string `json:"boot"`
	// Ticks is the start time of the command since the boot Boot. Together with the process
	// id it identifies one process for ever. SessionTicks is the start time of the
	// supervisor.
	Ticks        uint64 `json:"ticks"`
	SessionTicks uint64 `json:"session_ticks"`
}

// mark returns the prefix that all values of markExec in this run have.
func (r record) mark() string { return fmt.Sprintf("%d.%d.", r.Session, r.SessionTicks) }

// WriteSpec writes the spec into an existing folder. It removes a lease file that an
// earlier start left there, because the host may have been restarted since that start.
func WriteSpec(dir string, s Spec) error {
	if err := os.Remove(filepath.Join(dir, leaseFile)); err != nil && !missing(err) {
		return err
	}
	return writeJSON(filepath.Join(dir, specFile), s)
}

func readSpec(dir string) (Spec, error) {
	var s Spec
	return s, readJSON(filepath.Join(dir, specFile), &s)
}

// readRecord returns the last complete record of the status file. The error is
// fs.ErrNotExist if no supervisor has begun the run.
func readRecord(dir string) (record, error) {
	path := filepath.Join(dir, statusFile)
	data, err := readFile(path)
	if err != nil {
		return record{}, err
	}
	for _, line := range slices.Backward(bytes.Split(data, []byte("\n"))) {
		var r record
		if len(line) > 0 && json.Unmarshal(line, &r) == nil {
			return r, nil
		}
	}
	return record{}, fmt.Errorf("%s: %w", path, errTorn)
}

// writeRecord appends a record. Only the record of an end is made durable. The exit code
// must survive a power loss, because otherwise a batch task that has completed would run
// again. Other records need not be durable: a power loss also ends the run, and a start
// must not wait for the disk.
func writeRecord(dir string, r record) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := openFile(root, statusFile, os.O_WRONLY|os.O_APPEND)
	if missing(err) {
		// The file is made together with its first record, so that it is never empty.
		if err := replace(root, statusFile, r); err != nil {
			return err
		}
		f, err = openFile(root, statusFile, os.O_WRONLY|os.O_APPEND)
	} else if err == nil {
		err = appendRecord(f, r)
	}
	if err != nil {
		return err
	}
	if r.State != driver.Ended {
		return f.Close()
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	folder, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// appendRecord appends a record to an open file. It closes the file if that fails. The
// record begins with a line break, because a full disk may have cut off the previous line.
func appendRecord(f *os.File, r record) error {
	data, err := json.Marshal(r)
	if err == nil {
		_, err = f.Write(slices.Concat([]byte("\n"), data, []byte("\n")))
	}
	if err != nil {
		f.Close()
	}
	return err
}

// writeJSON replaces a file as a whole, so that a reader never sees a part of it.
func writeJSON(path string, v any) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	return replace(root, filepath.Base(path), v)
}

func replace(root *os.Root, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := openFile(root, name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err != nil {
		return err
	}
	return root.Rename(name+".new", name)
}

// reserve allocates disk space for further records, so that the end of the run can be
// written to a full disk. If that is impossible, reserve does nothing.
func reserve(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	if f, err := openFile(root, statusFile, os.O_WRONLY); err == nil {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, maxRecords)
		f.Close()
	}
}

// maxRecords is the disk space that is reserved for a run's records, in bytes: two blocks.
const maxRecords = 8192

// maxJSON bounds a file of a run, in bytes. An environment may be large.
const maxJSON = 8 << 20

func readJSON(path string, v any) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w: %w", path, errTorn, err)
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := openFile(root, filepath.Base(path), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxJSON))
}

// errTorn: a file exists, but its content is not valid. Files are replaced as a whole, so
// only a power loss or a container can cause that.
var errTorn = errors.New("is not complete")

// openFile opens a plain file in the folder of a run. A container can write into the
// folder. So a link that leads outside, or a pipe without a reader, must not mislead or
// block the agent.
func openFile(root *os.Root, name string, flag int) (*os.File, error) {
	f, err := root.OpenFile(name, flag|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a plain file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
