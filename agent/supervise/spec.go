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
	// logFile takes what a supervisor says of itself, mostly nothing. Every file
	// less is a file system's work less, for each task.
	logFile = lockFile
)

// Box is the name of a run's folder that a container shares. What runs there can
// write what it likes into it, so nothing in it names a process or a control
// group that the agent would kill.
const Box = "box"

func shared(dir string) bool { return filepath.Base(dir) == Box }

// Spec is what a supervisor runs.
type Spec struct {
	// Argv[0] is looked up in the PATH of Env unless it has a slash.
	Argv []string `json:"argv"`
	// Env as KEY=value. May hold secrets: it is only in the 0600 spec file.
	Env []string `json:"env"`
	Dir string   `json:"dir"`
	// User to run as; "" = the agent's. Own is a folder that is given to the
	// user; "" = none. Never Dir, which may be any folder of the host.
	User string `json:"user,omitempty"`
	Own  string `json:"own,omitempty"`
	// Log bounds of stdout and of stderr.
	LogFiles     int   `json:"log_files"`
	LogSizeBytes int64 `json:"log_size_bytes"`
	// LeaseDeadline on CLOCK_BOOTTIME; 0 = none. Then StopGrace until the kill.
	LeaseDeadline time.Duration `json:"lease_deadline,omitempty"`
	StopGrace     time.Duration `json:"stop_grace"`
	Limits        Limits        `json:"limits"`
	// Ulimits by name, as ulimit has them.
	Ulimits map[string]Ulimit `json:"ulimits,omitempty"`
	// View of the host's files; nil = all of them, as the agent sees them.
	View *View `json:"view,omitempty"`
	// Contained: the supervisor is the first process of a container.
	Contained bool `json:"contained,omitempty"`
}

// Limits are enforced by cgroups where Cgroup is set.
type Limits struct {
	// Cgroup is the run's name below the agent's cgroups; "" = no limits.
	Cgroup      string `json:"cgroup,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	CPUMilli    int64  `json:"cpu_milli,omitempty"`
	// HardCPU caps the CPU time; otherwise CPUMilli is a share under contention.
	HardCPU bool `json:"hard_cpu,omitempty"`
}

// record is the status file: the driver's status and what is needed to find
// the remains of a supervisor that was killed.
type record struct {
	driver.Status
	// Session is the supervisor's own process id; Group the command's.
	Session int    `json:"session"`
	Group   int    `json:"group"`
	Boot    string `json:"boot"`
	// Ticks is the start time of the command since Boot: with the process id it
	// names one process for ever. SessionTicks is the supervisor's.
	Ticks        uint64 `json:"ticks"`
	SessionTicks uint64 `json:"session_ticks"`
}

// mark is how the values of markExec begin that the run's supervisor gives.
func (r record) mark() string { return fmt.Sprintf("%d.%d.", r.Session, r.SessionTicks) }

// WriteSpec puts the spec into an existing folder.
func WriteSpec(dir string, s Spec) error { return writeJSON(filepath.Join(dir, specFile), s) }

func readSpec(dir string) (Spec, error) {
	var s Spec
	return s, readJSON(filepath.Join(dir, specFile), &s)
}

// readRecord: fs.ErrNotExist if no supervisor has begun. Records are added to
// the file, one a line: the last whole one counts.
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

// writeRecord is durable for an end: its exit code must survive a loss of power,
// or a batch task that has completed would run again. Before the end it need not
// be, because nothing of a run survives that either, and a start must not wait
// for the disk.
func writeRecord(dir string, r record) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := openFile(root, statusFile, os.O_WRONLY|os.O_APPEND)
	if missing(err) {
		// The first one comes with its file, so that there is never one without.
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

// appendRecord closes the file when it fails. What a full disk has cut off
// before is ended by the first line break.
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

// writeJSON replaces a file as a whole, so that a reader never sees a part.
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
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return root.Rename(name+".new", name)
}

// reserve takes the room that further records need, so that a command's end can
// be written although the disk is full by then. Where it cannot: nothing.
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

// maxRecords in bytes that are reserved for those of a run: two blocks.
const maxRecords = 8192

// maxJSON bounds a file of a run; an environment may be large.
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

// errTorn: a file is there and its content is not. Files appear as a whole, so
// only a loss of power, or what a container writes, does that.
var errTorn = errors.New("is not whole")

// openFile opens a plain file in the folder of a run. What runs in a container
// can write there: a link that leads out, or a pipe that nobody serves, must
// not lead the agent astray.
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
