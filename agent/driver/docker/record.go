package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/internal/replace"
)

// record holds what the driver itself knows about a run.
type record struct {
	// Container is the engine's id of the container, or "" if the container was not made
	// yet.
	Container string `json:"container,omitempty"`
	// Begun says that the engine was asked to start the container. The driver makes another
	// container only if it is certain that this one has not begun and never will begin.
	Begun bool `json:"begun,omitempty"`
	// Stopping says that Stop was called while the run was running.
	Stopping    bool      `json:"stopping,omitempty"`
	PID         int       `json:"pid,omitempty"`
	Started     time.Time `json:"started,omitzero"`
	MemoryBytes int64     `json:"memory_bytes,omitempty"`
	// End is the final status. It remains after the removal of the container.
	End *driver.Status `json:"end,omitempty"`
}

// records are the files of a data directory: DIR/ALLOC/TASK.RUN.json for each run, and
// DIR/owner, which holds the random id in the labels of this driver's containers.
type records struct {
	dir   string
	owner string
	mu    sync.Mutex
}

func openRecords(dir string) (*records, error) {
	if dir == "" {
		return nil, errors.New("no folder is configured for the records of runs")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	r := &records{dir: dir}
	path := filepath.Join(dir, "owner")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data = []byte(uuid.NewString())
		err = replace.File(path, data)
	}
	r.owner = strings.TrimSpace(string(data))
	if err == nil && r.owner == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return r, err
}

func (r *records) path(id driver.ID) string {
	return filepath.Join(r.dir, id.Alloc, fmt.Sprintf("%s.%d.json", id.Task, id.Run))
}

// get returns the record of a run. It returns false if there is no record or if the record
// is damaged. In that case Start finds an existing container by its name.
func (r *records) get(id driver.ID) (record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read(id)
}

func (r *records) read(id driver.ID) (record, bool) {
	var rec record
	data, err := os.ReadFile(r.path(id))
	if err != nil || json.Unmarshal(data, &rec) != nil {
		return record{}, false
	}
	return rec, true
}

// change rewrites the record of a run durably. If there is no record, it creates one.
func (r *records) change(id driver.ID, f func(*record)) (record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, _ := r.read(id)
	f(&rec)
	data, err := json.Marshal(rec)
	if err != nil {
		return rec, err
	}
	if err := os.MkdirAll(filepath.Dir(r.path(id)), 0o700); err != nil {
		return rec, err
	}
	return rec, replace.File(r.path(id), data)
}

// end records how a run ended and returns the recorded end. Only the first call for a run
// changes the end.
func (r *records) end(id driver.ID, st driver.Status) (driver.Status, error) {
	rec, err := r.change(id, func(rec *record) {
		if rec.End == nil {
			rec.End = &st
		}
	})
	return *rec.End, err
}

func (r *records) remove(id driver.ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.Remove(r.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.closeGate(id); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(r.path(id))) // this succeeds when the last run of the allocation is removed
	return nil
}

// gate returns the path of a file that is mounted in the run's container. Without this file
// the container cannot begin. The driver removes the file when it gives up a start that a
// hanging engine may still carry out.
func (r *records) gate(id driver.ID) string {
	return filepath.Join(r.dir, id.Alloc, fmt.Sprintf("%s.%d.gate", id.Task, id.Run))
}

// gateTarget is the path of the gate in a container.
const gateTarget = "/run/nusa/begin"

func (r *records) openGate(id driver.ID) error {
	f, err := os.OpenFile(r.gate(id), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (r *records) closeGate(id driver.ID) error {
	if err := os.Remove(r.gate(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// nameOf returns the container's name. The engine keeps names unique.
func nameOf(id driver.ID) string { return fmt.Sprintf("nusa-%s-%s-%d", id.Alloc, id.Task, id.Run) }

// runOf returns the run that a container's labels name.
func runOf(labels map[string]string) (driver.ID, bool) {
	run, err := strconv.Atoi(labels[labelRun])
	return driver.ID{Alloc: labels[labelAlloc], Task: labels[labelTask], Run: run}, err == nil
}

// statusOf converts an engine's state. An engine reports a signal only as the exit code 128
// + signal, like a shell, so such an exit code counts as a signal.
func statusOf(s *container.State, rec record) driver.Status {
	st := driver.Status{State: driver.Running, PID: s.Pid, Started: timeOf(s.StartedAt)}
	switch {
	case s.Running || s.Paused || s.Restarting:
		return st
	case st.Started.IsZero() && s.Error == "":
		st.State = driver.Starting
		return st
	}
	st.State, st.PID, st.Finished, st.ExitCode = driver.Ended, rec.PID, timeOf(s.FinishedAt), s.ExitCode
	if st.Finished.Before(st.Started) {
		st.Finished = st.Started
	}
	if n := s.ExitCode - 128; n > 0 && n < 65 {
		st.Signal = n
	}
	switch {
	case st.Started.IsZero():
		st.Started = rec.Started
		st.Finished = rec.Started
		st.Signal, st.Cause, st.Message = 0, driver.CauseStartFailed, s.Error
	case rec.Stopping:
		st.Cause, st.Message = driver.CauseStopped, "stopped by the agent"
	case s.OOMKilled:
		st.Message, st.OutOfMemory = driver.OutOfMemory(rec.MemoryBytes), true
	case s.Error != "":
		st.Message = s.Error
	}
	return st
}

// lost returns the end of a run whose container another program removed.
func lost(rec record) driver.Status {
	st := driver.Status{State: driver.Ended, PID: rec.PID, Started: rec.Started, Finished: time.Now().UTC().Round(0),
		ExitCode: 137, Signal: int(unix.SIGKILL), Cause: driver.CauseLost,
		Message: fmt.Sprintf("container %.12s is gone from the engine; the exit code is unknown", rec.Container)}
	if rec.Stopping {
		st.Cause = driver.CauseStopped
	}
	return st
}

// timeOf parses an engine's time. A time in the year 1 means that there is none.
func timeOf(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t.UTC()
}
