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

// Files in the folder of a run. The folder is 0700, the files 0600.
const (
	specFile   = "spec.json"
	statusFile = "status.json"
	lockFile   = "lock"
	socketFile = "sock"
	// logFile receives a supervisor's own messages, which are rare. It is the same file as
	// the lock, because each additional file of a task takes work of the file system.
	logFile = lockFile
)

// Box is the name of a run's folder that a container shares. A container can write anything
// into this folder, so the agent never kills a process or cgroup that a file there names.
const Box = "box"

func shared(dir string) bool { return filepath.Base(dir) == Box }

// Spec is the specification of a supervisor's command.
type Spec struct {
	// Argv[0] is looked up in the PATH of Env unless it has a slash.
	Argv []string `json:"argv"`
	// Env as KEY=value. It may hold secrets, so it is only in the spec file with
	// mode 0600.
	Env []string `json:"env"`
	Dir string   `json:"dir"`
	// User of the command. "": the agent's user. Own is a folder that is given to the
	// user. "": none. Own is never Dir, because Dir may be any folder of the host.
	User string `json:"user,omitempty"`
	Own  string `json:"own,omitempty"`
	// Log bounds of stdout and of stderr.
	LogFiles     int   `json:"log_files"`
	LogSizeBytes int64 `json:"log_size_bytes"`
	// LeaseDeadline on CLOCK_BOOTTIME. 0: none. The kill follows StopGrace later.
	LeaseDeadline time.Duration `json:"lease_deadline,omitempty"`
	// LeaseNumber is the number of the deadline.
	LeaseNumber uint64        `json:"lease_number,omitempty"`
	StopGrace   time.Duration `json:"stop_grace"`
	Limits      Limits        `json:"limits"`
	// Ulimits by their names in the ulimit command.
	Ulimits map[string]Ulimit `json:"ulimits,omitempty"`
	// View of the host's files. nil: all files, like the agent.
	View *View `json:"view,omitempty"`
	// Contained: the supervisor is the first process of a container.
	Contained bool `json:"contained,omitempty"`
}

// Limits are enforced by cgroups if Cgroup is set.
type Limits struct {
	// Cgroup is the run's name below the agent's cgroups. "": no limits.
	Cgroup      string `json:"cgroup,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	CPUMilli    int64  `json:"cpu_milli,omitempty"`
	// HardCPU caps the CPU time. Without it CPUMilli is a share under contention.
	HardCPU bool `json:"hard_cpu,omitempty"`
}

// record is the status file: the driver's status, and the data that finds the
// remaining processes of a killed supervisor.
type record struct {
	driver.Status
	// Session is the supervisor's own process id; Group the command's.
	Session int    `json:"session"`
	Group   int    `json:"group"`
	Boot    string `json:"boot"`
	// Ticks is the start time of the command since Boot. Together with the process id it
	// identifies one process for ever. SessionTicks is the start time of the supervisor.
	Ticks        uint64 `json:"ticks"`
	SessionTicks uint64 `json:"session_ticks"`
}

// mark returns the beginning of the values of markExec that the run's supervisor gives.
func (r record) mark() string { return fmt.Sprintf("%d.%d.", r.Session, r.SessionTicks) }

// WriteSpec puts the spec into an existing folder. A deadline that an earlier start left there
// does not count, because the host may have been restarted since.
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

// readRecord returns the last whole line of the file. fs.ErrNotExist: no supervisor
// has begun the run.
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

// writeRecord appends a record. It makes the record of an end durable, because the exit code
// must survive a power loss: otherwise a batch task that has completed would run again. Other
// records need not be durable, because a power loss ends the run too, and a start must not wait
// for the disk.
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

// appendRecord closes the file after an error. The record begins with a line break, which
// ends a line that a full disk has cut off.
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

// reserve allocates disk space for further records, so that an end can be written
// to a full disk. If that is not possible it does nothing.
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

// maxRecords is the reserved size of a run's records in bytes: two blocks.
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

// errTorn: a file exists and its content is not valid. Files appear as a whole, so only a
// power loss or a container can cause that.
var errTorn = errors.New("is not whole")

// openFile opens a plain file in the folder of a run. A container can write there:
// a link that leads outside, or a pipe without a reader, must not mislead or block
// the agent.
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
