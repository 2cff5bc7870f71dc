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
// restart of the host, and it is not deleted with a data directory. No volume may contain
// Root, because such a volume would show the volumes of every run.
const Root = "/run/nusa"

// Folder mounts volumes for an engine that only accepts paths. The folder is private to the
// agent, so no other user can change what the engine mounts. The folder is a mount of its
// own file system. So an engine that does not see the agent's mounts finds no volume and
// refuses, instead of mounting an empty folder. Methods for different runs may be called
// concurrently.
type Folder struct {
	dir string
	of  string     // name of the mount, with the data directory, for people who inspect the host's mounts
	mu  sync.Mutex // guards the mount of the folder itself
}

// NewFolder returns the mount folder of a driver with the data directory dataDir. The
// folder still has the mounts of an earlier agent.
func NewFolder(dataDir string) *Folder {
	name := fnv.New64a() // a small hash function, because supervisors contain this package
	name.Write([]byte(dataDir))
	return &Folder{dir: filepath.Join(Root, fmt.Sprintf("%016x", name.Sum64())), of: "nusa-volumes:" + dataDir}
}

// ready mounts the folder's file system if it is not mounted yet.
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

// mounted reports whether the folder's file system is mounted: then the folder is on
// another device than its parent.
func (s *Folder) mounted() bool {
	var own, above unix.Stat_t
	return unix.Lstat(s.dir, &own) == nil && unix.Lstat(filepath.Dir(s.dir), &above) == nil && own.Dev != above.Dev
}

// Put mounts the volumes of a run in the folder. It returns them with their sources in the
// folder, for the engine. The sources of the arguments must not contain links. Mounts of an
// earlier Put stay. If this process cannot mount (Usable), Put returns the volumes
// unchanged.
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

// Drop unmounts the volumes of a run. An engine that has mounted a volume keeps its own
// mount.
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

// removeMount unmounts a volume and removes its mount point. It removes only an empty
// folder or file, so it never deletes files of a volume that is still mounted.
func removeMount(at string) error {
	for {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EINVAL) {
			return os.Remove(at) // the target is no longer a mount
		} else if err != nil {
			return &os.PathError{Op: "unmount", Path: at, Err: err}
		}
	}
}

// Sweep drops the volumes of runs that no longer need them. It ignores errors.
func (s *Folder) Sweep(needed func(driver.ID) bool) {
	entries, _ := os.ReadDir(s.dir) // an error means that the folder does not exist or belongs to another user
	for _, e := range entries {
		if id, ok := idOf(e.Name()); !ok || !needed(id) {
			_ = s.drop(e.Name())
		}
	}
}

// Close removes the folder if no run has volumes there.
func (s *Folder) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounted() && unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW) == nil {
		_ = os.Remove(s.dir)
	}
}

// nameOf returns the folder name of a run. An allocation's id contains no dot.
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
