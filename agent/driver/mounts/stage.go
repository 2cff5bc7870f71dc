package mounts

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Stages is the folder of all stages of this host; nothing of it outlives a
// boot, nor is it deleted with anybody's data. No volume may show it: that would
// be the volumes of every run.
const Stages = "/run/nusa"

// Stage mounts volumes for an engine that is told paths, in a folder that is the
// agent's alone, so that the engine mounts what was allowed. The folder is a file
// system of its own: an engine that does not see the agent's mounts finds nothing
// there, and refuses, instead of an empty folder. Methods for different runs may
// be called at a time.
type Stage struct {
	dir string
	of  string     // whose it is, for people who look at the host's mounts
	mu  sync.Mutex // of the folder's own mount
}

// NewStage returns the stage of a driver with that data directory. What an agent
// before this one has mounted is still there.
func NewStage(dataDir string) *Stage {
	name := fnv.New64a() // small: supervisors have this package in them
	name.Write([]byte(dataDir))
	return &Stage{dir: filepath.Join(Stages, fmt.Sprintf("%016x", name.Sum64())), of: "nusa-volumes:" + dataDir}
}

// ready mounts the folder unless it is.
func (s *Stage) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounted() {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(s.of, s.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4m,mode=0700"); err != nil {
		return fmt.Errorf("mount %s: %w", s.dir, err)
	}
	return nil
}

// mounted: the folder is on another device than the one above it.
func (s *Stage) mounted() bool {
	var own, above unix.Stat_t
	return unix.Lstat(s.dir, &own) == nil && unix.Lstat(filepath.Dir(s.dir), &above) == nil && own.Dev != above.Dev
}

// Put mounts the volumes of a run, whose sources have been resolved, and returns
// them with sources for the engine. Those that are there from an earlier Put
// stay. Where the agent cannot mount (Usable) they are returned as they are.
func (s *Stage) Put(id driver.ID, volumes []driver.Volume) ([]driver.Volume, error) {
	if len(volumes) == 0 {
		return nil, nil
	}
	if err := s.ready(); err != nil {
		if errors.Is(err, fs.ErrPermission) && Usable() != nil {
			return volumes, nil
		}
		return nil, err
	}
	dir := filepath.Join(s.dir, nameOf(id))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	out := make([]driver.Volume, len(volumes))
	for i, v := range volumes {
		at := filepath.Join(dir, v.Name)
		if err := put(v, at); err != nil {
			return nil, errors.Join(fmt.Errorf("volumes.%s: %w", v.Name, err), s.Drop(id))
		}
		out[i] = v
		out[i].Source = at
	}
	return out, nil
}

func put(v driver.Volume, at string) error {
	f, err := Open(v.Source)
	if err != nil {
		return err
	}
	defer f.Close()
	source, err := f.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(at); err == nil {
		if os.SameFile(there, source) {
			return nil
		}
		if err := take(at); err != nil {
			return err
		}
	}
	if source.IsDir() {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return Bind(f, at, v.ReadOnly)
}

// Drop unmounts the volumes of a run. Engines that have mounted them keep them.
func (s *Stage) Drop(id driver.ID) error { return s.drop(nameOf(id)) }

func (s *Stage) drop(name string) error {
	dir := filepath.Join(s.dir, name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil // never staged, or not by this user
		}
		return err
	}
	for _, e := range entries {
		err = errors.Join(err, take(filepath.Join(dir, e.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}

// take a volume away. What is still mounted there keeps its place from being
// removed; nothing below it ever is.
func take(at string) error {
	for {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EINVAL) {
			return os.Remove(at) // it is no mount any more
		} else if err != nil {
			return &os.PathError{Op: "unmount", Path: at, Err: err}
		}
	}
}

// Sweep drops the volumes of runs that need them no more, as far as it can.
func (s *Stage) Sweep(needed func(driver.ID) bool) {
	entries, _ := os.ReadDir(s.dir) // none: there is no stage, or it is not this user's
	for _, e := range entries {
		if id, ok := idOf(e.Name()); !ok || !needed(id) {
			_ = s.drop(e.Name())
		}
	}
}

// Close takes the stage away if no run has volumes on it.
func (s *Stage) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounted() && unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW) == nil {
		_ = os.Remove(s.dir)
	}
}

// nameOf is the folder of a run: an allocation's id has no dot.
func nameOf(id driver.ID) string { return fmt.Sprintf("%s.%s.%d", id.Alloc, id.Task, id.Run) }

func idOf(name string) (driver.ID, bool) {
	alloc, rest, _ := strings.Cut(name, ".")
	dot := strings.LastIndexByte(rest, '.')
	if dot < 0 {
		return driver.ID{}, false
	}
	run, err := strconv.Atoi(rest[dot+1:])
	return driver.ID{Alloc: alloc, Task: rest[:dot], Run: run}, err == nil
}
