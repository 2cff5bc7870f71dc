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

// Root is the folder of all mount folders of this host. Its content does not survive a
// restart of the host and is not deleted with a data directory. No volume may contain Root,
// because such a volume would show the volumes of every run.
const Root = "/run/nusa"

// Folder mounts volumes for an engine that only accepts paths. Its folder is private to the
// agent, so that the engine mounts exactly the allowed folder. The folder is a file system of
// its own. So an engine that does not see the agent's mounts finds nothing there and refuses,
// instead of mounting an empty folder. Methods for different runs may be called concurrently.
type Folder struct {
	dir string
	of  string     // the data directory, for people who inspect the host's mounts
	mu  sync.Mutex // guards the mount of the folder itself
}

// NewFolder returns the mount folder of a driver with that data directory. Mounts of an
// earlier agent are still in the folder.
func NewFolder(dataDir string) *Folder {
	name := fnv.New64a() // a small hash, because supervisors contain this package
	name.Write([]byte(dataDir))
	return &Folder{dir: filepath.Join(Root, fmt.Sprintf("%016x", name.Sum64())), of: "nusa-volumes:" + dataDir}
}

// ready mounts the folder if it is not mounted.
func (s *Folder) ready() error {
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

// mounted reports whether the folder is on another device than its parent.
func (s *Folder) mounted() bool {
	var own, above unix.Stat_t
	return unix.Lstat(s.dir, &own) == nil && unix.Lstat(filepath.Dir(s.dir), &above) == nil && own.Dev != above.Dev
}

// Put mounts the volumes of a run and returns them with sources for the engine. The links in
// their sources must be resolved. Volumes of an earlier Put stay. If the agent cannot mount
// (Usable), the volumes are returned unchanged.
func (s *Folder) Put(id driver.ID, volumes []driver.Volume) ([]driver.Volume, error) {
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
		if err := removeMount(at); err != nil {
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

// Drop unmounts the volumes of a run. An engine that has mounted them keeps its
// mounts.
func (s *Folder) Drop(id driver.ID) error { return s.drop(nameOf(id)) }

func (s *Folder) drop(name string) error {
	dir := filepath.Join(s.dir, name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil // never mounted, or not by this user
		}
		return err
	}
	for _, e := range entries {
		err = errors.Join(err, removeMount(filepath.Join(dir, e.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}

// removeMount unmounts a volume and removes its folder. If a mount remains, the folder
// cannot be removed. Nothing below a mount is ever removed.
func removeMount(at string) error {
	for {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EINVAL) {
			return os.Remove(at) // it is not a mount any more
		} else if err != nil {
			return &os.PathError{Op: "unmount", Path: at, Err: err}
		}
	}
}

// Sweep drops the volumes of runs that no longer need them. It ignores errors.
func (s *Folder) Sweep(needed func(driver.ID) bool) {
	entries, _ := os.ReadDir(s.dir) // an error: the folder does not exist or is not this user's
	for _, e := range entries {
		if id, ok := idOf(e.Name()); !ok || !needed(id) {
			_ = s.drop(e.Name())
		}
	}
}

// Close removes the folder if no run has volumes in it.
func (s *Folder) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounted() && unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW) == nil {
		_ = os.Remove(s.dir)
	}
}

// nameOf returns the folder of a run. An allocation's id contains no dot.
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
