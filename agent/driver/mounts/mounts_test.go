package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
)

// alone gives the test's thread its own mounts. They end with the thread.
func alone(t *testing.T) {
	t.Helper()
	if err := Usable(); err != nil {
		t.Skip("needs root: ", err)
	}
	runtime.LockOSThread() // never unlocked
	must(t, Separate())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree returns a folder that is a mount, with another mount below it and files in both. The
// mounts are shared, like those of hosts.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	below := filepath.Join(dir, "below")
	must(t, unix.Mount("test", dir, "tmpfs", 0, ""))
	must(t, os.Mkdir(below, 0o755))
	must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	must(t, unix.Mount("test", below, "tmpfs", 0, ""))
	must(t, errors.Join(os.WriteFile(dir+"/file", []byte("one"), 0o600), os.WriteFile(below+"/file", []byte("two"), 0o600)))
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestBindReadOnly: a read-only mount includes the mounts below it.
func TestBindReadOnly(t *testing.T) {
	alone(t)
	source := tree(t)
	for name, c := range map[string]struct {
		bind     func(*os.File, string, bool) error
		readOnly bool
		below    string
	}{
		"read-only":              {Bind, true, "two"},
		"writable":               {Bind, false, "two"},
		"old kernel, read-only":  {bindOne, true, "no such file or directory"},
		"old kernel, not so":     {bindOne, false, "two"},
		"one by one (read-only)": {bindTree, true, "two"},
	} {
		target := t.TempDir()
		f, err := Open(source)
		must(t, err)
		must(t, c.bind(f, target, c.readOnly))
		must(t, f.Close())
		if got := read(t, target+"/below/file"); !strings.HasSuffix(got, c.below) {
			t.Errorf("%s: below it is %q", name, got)
		}
		for _, dir := range []string{target, target + "/below"} {
			err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600)
			if c.readOnly != errors.Is(err, unix.EROFS) || !c.readOnly && err != nil {
				t.Errorf("%s: write to %s: %v", name, dir, err)
			}
		}
		must(t, unix.Unmount(target, unix.MNT_DETACH))
		if got := read(t, source+"/below/file"); got != "two" {
			t.Errorf("%s: after its end the source has %q", name, got)
		}
	}
}

func volumes(source string) []driver.Volume {
	return []driver.Volume{{Name: "dir", Source: source, Target: "/x"}, {Name: "file", Source: source + "/file", ReadOnly: true}}
}

var run = driver.ID{Alloc: "0f0e0d0c-0000-4000-8000-000000000001", Task: "web.1", Run: 3}

// TestAllowedVolumeStaysMounted: the allowed folder is mounted even if its path
// changes afterwards. After the unmount the folder's files remain.
func TestAllowedVolumeStaysMounted(t *testing.T) {
	alone(t)
	source, s := tree(t), NewFolder(t.TempDir())
	t.Cleanup(s.Close)
	got, err := s.Put(run, volumes(source))
	must(t, err)
	if got[0].Target != "/x" || got[0].Source == source || !got[1].ReadOnly {
		t.Errorf("%+v", got)
	}
	var before, again unix.Stat_t
	must(t, unix.Stat(got[0].Source, &before))
	must(t, os.Rename(source+"/file", source+"/moved"))
	must(t, os.Symlink("/etc/passwd", source+"/file"))
	if text := read(t, got[0].Source+"/below/file") + read(t, got[1].Source); text != "twoone" {
		t.Errorf("it shows %q", text)
	}
	if err := os.WriteFile(got[1].Source, nil, 0); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to what is read-only: %v", err)
	}
	// The next Put does not follow the link.
	if _, err := s.Put(driver.ID{Alloc: "b", Task: "c", Run: 1}, volumes(source)); !errors.Is(err, unix.ELOOP) || !strings.Contains(err.Error(), "volumes.file: ") {
		t.Errorf("a link was put there: %v", err)
	}
	must(t, os.Rename(source+"/moved", source+"/file"))

	// The next agent finds the mounts and mounts nothing twice.
	next := &Folder{dir: s.dir, of: s.of}
	next.Sweep(func(id driver.ID) bool { return id == run })
	if _, err := next.Put(run, volumes(source)); err != nil {
		t.Fatal(err)
	}
	must(t, unix.Stat(got[0].Source, &again))
	if before.Dev != again.Dev || before.Ino != again.Ino {
		t.Error("it was mounted again")
	}
	next.Close()
	if text := read(t, got[1].Source); text != "one" {
		t.Errorf("an agent ended, and a run has %q", text)
	}
	// After a restart of the host nothing is mounted.
	must(t, unix.Unmount(s.dir, unix.MNT_DETACH))
	must(t, next.Drop(run))
	if left, err := os.ReadDir(s.dir); len(left) != 0 || err != nil {
		t.Errorf("%v %v", left, err)
	}
	_, err = next.Put(run, volumes(source))
	must(t, err)
	next.Sweep(func(driver.ID) bool { return false })
	if left, err := os.ReadDir(s.dir); len(left) != 0 || err != nil {
		t.Errorf("%v %v", left, err)
	}
	must(t, next.Drop(run))
	if text := read(t, source+"/file") + read(t, source+"/below/file"); text != "onetwo" {
		t.Errorf("afterwards the source has %q", text)
	}
}

// TestLeftoverFindsMountFolders: package leftover finds the mount folders of one test and
// not those of other tests.
func TestLeftoverFindsMountFolders(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	s, other := NewFolder(filepath.Join(dir, "data")), NewFolder(t.TempDir())
	t.Cleanup(func() {
		other.Close()
		_ = os.Remove(s.dir)
	})
	got, err := s.Put(run, []driver.Volume{{Name: "v", Source: t.TempDir()}})
	must(t, err)
	_, err = other.Put(run, []driver.Volume{{Name: "v", Source: t.TempDir()}})
	must(t, err)
	if left, want := leftover.Mounts(dir), []string{got[0].Source, s.dir}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
	must(t, leftover.End(dir))
	if left := leftover.Mounts(dir); len(left) > 0 || s.mounted() || !other.mounted() {
		t.Errorf("afterwards there are %v, and of another %t", left, other.mounted())
	}
	must(t, other.Drop(run))
}

// TestChangedSourceIsMountedAgain: at the second Put the path leads to another folder.
func TestChangedSourceIsMountedAgain(t *testing.T) {
	alone(t)
	source, s := t.TempDir()+"/a", NewFolder(t.TempDir())
	t.Cleanup(s.Close)
	for _, name := range []string{"first", "second"} {
		must(t, os.Mkdir(source, 0o755))
		must(t, os.WriteFile(source+"/"+name, []byte(name), 0o644))
		got, err := s.Put(run, []driver.Volume{{Name: "v", Source: source}})
		must(t, err)
		if text := read(t, got[0].Source+"/"+name); text != name {
			t.Errorf("%q, want %q", text, name)
		}
		must(t, os.Rename(source, source+name))
	}
	must(t, s.Drop(run))
}

// TestUnseenFolderRefuses: an engine that does not see the agent's mounts finds no folder,
// not an empty folder.
func TestUnseenFolderRefuses(t *testing.T) {
	alone(t)
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	s := NewFolder(t.TempDir())
	t.Cleanup(s.Close)
	looked, look, seen := make(chan error), make(chan string), make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		looked <- Separate()
		_, err := os.Stat(<-look)
		seen <- err
	}()
	must(t, <-looked)
	got, err := s.Put(run, []driver.Volume{{Name: "v", Source: t.TempDir()}})
	must(t, err)
	look <- got[0].Source
	if err := <-seen; !errors.Is(err, os.ErrNotExist) {
		t.Errorf("elsewhere: %v", err)
	}
	must(t, s.Drop(run))
}

// TestFolderWithoutTheRightToMount: if the agent's user cannot mount, Put returns the paths, and
// ByPath reports it.
func TestFolderWithoutTheRightToMount(t *testing.T) {
	drivertest.Unprivileged(t, func(t *testing.T) {
		s := NewFolder(t.TempDir())
		got, err := s.Put(run, volumes("/srv"))
		if err != nil || got[0].Source != "/srv" {
			t.Errorf("%+v, %v", got, err)
		}
		if err := s.Drop(run); err != nil || ByPath() == "" {
			t.Errorf("%v; %q", err, ByPath())
		}
		s.Close()
	})
}
