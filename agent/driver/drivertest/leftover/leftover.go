package leftover

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds the wait until killed processes have ended.
const patience = time.Minute

// Processes returns the processes that work below a folder or have it in their command
// line, except this process. It maps each process id to the command line.
func Processes(dir string) map[int]string {
	out := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		cwd, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if bytes.Contains(line, []byte(dir+"/")) || strings.HasPrefix(cwd, dir+"/") {
			out[pid] = string(bytes.TrimSpace(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return out
}

// Mounts returns the mounts below a folder, the innermost mount first. It includes the
// mount folders (agent/driver/mounts) of data folders below the folder, with their mounts.
func Mounts(dir string) []string {
	text, _ := os.ReadFile("/proc/thread-self/mountinfo")
	var out []string
	within := []string{dir + "/"}
	for line := range strings.Lines(string(text)) { // each mount comes after the mount that contains it
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		below := slices.ContainsFunc(within, func(d string) bool { return strings.HasPrefix(f[4], d) })
		if !below && strings.Contains(line, " nusa-volumes:"+dir+"/") {
			below, within = true, append(within, f[4]+"/")
		}
		if below {
			out = append(out, f[4])
		}
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return out
}

// End kills the processes of a folder and removes its mounts. It returns an error if a
// process or a mount is left.
func End(dir string) error {
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left := Processes(dir)
		for pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // reap the process if it is a child of this one
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(until) {
			return fmt.Errorf("processes are left: %v", left)
		}
	}
	var errs []error
	for _, m := range Mounts(dir) {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}

// Nothing adds a check that runs after the test. The check fails the test if a process or a
// mount of the folder is left, and then ends that process or mount. Call Nothing before
// anything starts in the folder, so that its check runs last.
func Nothing(t testing.TB, dir string) {
	t.Cleanup(func() {
		// Processes that were asked to end may need a moment.
		for until := time.Now().Add(patience); len(Processes(dir)) > 0 && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
		}
		if p, m := Processes(dir), Mounts(dir); len(p) > 0 || len(m) > 0 {
			t.Errorf("left behind: processes %v, mounts %v", slices.Sorted(maps.Values(p)), m)
		}
		if err := End(dir); err != nil {
			t.Error(err)
		}
	})
}

// envDir names the environment variable that makes a test's executable the watcher of a
// folder.
const envDir = "NUSA_TEST_LEFTOVER"

// M is a testing.M whose tests have their temporary folders in a watched folder. A second
// process, the watcher, ends everything that the tests leave in the folder, even if the
// tests are killed.
type M struct{ *testing.M }

// Run runs the tests. In the watcher's process Run does not return.
func (m M) Run() int {
	if dir := os.Getenv(envDir); dir != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(finish(dir, 0))
	}
	dir, err := os.MkdirTemp("", "n") // a short path, because sockets are below it
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Setenv("TMPDIR", dir))
	}
	watcher, in := exec.Command(os.Args[0]), io.WriteCloser(nil)
	if err == nil {
		watcher.Dir, watcher.Env = "/", append(os.Environ(), envDir+"="+dir)
		watcher.Stderr, watcher.SysProcAttr = os.Stderr, &unix.SysProcAttr{Setsid: true}
		in, err = watcher.StdinPipe()
	}
	if err == nil {
		err = watcher.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "watch what the tests leave:", err)
		return 1
	}
	code := finish(dir, m.M.Run())
	in.Close()
	_ = watcher.Wait()
	return code
}

// finish ends what the tests left and removes the folder. While a mount is left it removes
// nothing, because the removal would delete the mounted files. code is the exit code of the
// tests.
func finish(dir string, code int) int {
	err := End(dir)
	if left := Mounts(dir); err == nil && len(left) > 0 {
		err = fmt.Errorf("mounts are left: %v", left)
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "left by the tests:", err)
		return 1
	}
	return code
}
