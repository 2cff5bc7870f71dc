package incus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/internal/replace"
)

// record holds what the driver itself knows about a run. Only the host can read it. The
// driver writes the record before the first request to the daemon.
type record struct {
	Instance   string `json:"instance"`
	Supervised bool   `json:"supervised"`
	// Started is the time at which the daemon started a run that has no supervisor.
	Started time.Time `json:"started,omitzero"`
	// Final is the end of a run whose supervisor could not record the end.
	Final *driver.Status `json:"final,omitempty"`
}

const recordFile = "run.json"

func (d *Driver) runDir(id driver.ID) string {
	return filepath.Join(d.cfg.Dir, id.Alloc, fmt.Sprintf("%s.%d", id.Task, id.Run))
}

// Runs implements driver.Lister.
func (d *Driver) Runs(context.Context) ([]driver.ID, error) { return driver.RunsIn(d.cfg.Dir, "") }

// box returns the folder of a run that the container sees. Only package supervise reads the
// folder, and that package does not trust its contents.
func (d *Driver) box(id driver.ID) string { return filepath.Join(d.runDir(id), supervise.Box) }

// read reads the record of a run. It returns driver.ErrNotFound if there is none.
func (d *Driver) read(id driver.ID) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(d.runDir(id), recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, driver.ErrNotFound
	}
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

func (d *Driver) write(id driver.ID, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace.File(filepath.Join(d.runDir(id), recordFile), data)
}

// finish records the end of a run whose supervisor cannot record the end.
func (d *Driver) finish(id driver.ID, r record, cause driver.Cause, message string, code int) (driver.Status, error) {
	now := time.Now().UTC().Round(0) // Round removes the monotonic clock reading, which JSON cannot store
	st := driver.Status{State: driver.Ended, Started: r.Started, Finished: now, ExitCode: code, Cause: cause, Message: message}
	if st.Started.IsZero() {
		st.Started = now
	}
	r.Final = &st
	return st, d.write(id, r)
}

// ownerOf returns the id of a data directory. The first call makes the id.
func ownerOf(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "owner")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data = []byte(`"` + strings.ToLower(rand.Text()) + `"`)
		err = replace.File(path, data)
	}
	if err != nil {
		return "", err
	}
	var owner string
	return owner, json.Unmarshal(data, &owner)
}

// locks ensure that only one caller at a time changes a run.
type locks struct {
	mu   sync.Mutex
	held map[driver.ID]*held
}

type held struct {
	free  chan struct{} // holds a token while the lock is free
	users int
}

func (l *locks) take(ctx context.Context, id driver.ID) (unlock func(), err error) {
	l.mu.Lock()
	h := l.held[id]
	if h == nil {
		h = &held{free: make(chan struct{}, 1)}
		h.free <- struct{}{}
		l.held[id] = h
	}
	h.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(l.held, id)
		}
	}
	select {
	case <-h.free:
		return func() { h.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
