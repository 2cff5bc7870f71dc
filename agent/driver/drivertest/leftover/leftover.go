// Package leftover ends what a test has started and not ended: an agent leaves
// its tasks alone when it ends, and a test that fails, or is killed, does not
// get to stop them.
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

// patience is how long what was killed may take to be gone.
const patience = time.Minute

// Processes are those that work below a folder, or have it in their command
// line, with that line; not this one.
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

// Mounts below a folder, and the stages (agent/driver/mounts) of data folders
// below it with what is mounted there, the innermost first.
func Mounts(dir string) []string {
	text, _ := os.ReadFile("/proc/thread-self/mountinfo")
	var out []string
	within := []string{dir + "/"}
	for line := range strings.Lines(string(text)) { // a mount comes after the one that it is on
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

// End kills the processes of a folder and takes away its mounts. An error:
// something is left.
func End(dir string) error {
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left := Processes(dir)
		for pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // where it is a child of ours
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

// Nothing fails the test if anything is left of a folder after it, and ends it.
// Call it before anything is started there: it comes last.
func Nothing(t testing.TB, dir string) {
	t.Cleanup(func() {
		// What was told to end may take a moment.
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

// envDir tells a test's executable to be a watcher of a folder.
const envDir = "NUSA_TEST_LEFTOVER"

// M is a testing.M whose tests have their temporary folders in one that is
// looked after: what is left below it ends with the tests, also if they are
// killed.
type M struct{ *testing.M }

// Run runs the tests; in the process that watches them it does not return.
func (m M) Run() int {
	if dir := os.Getenv(envDir); dir != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(finish(dir, 0))
	}
	dir, err := os.MkdirTemp("", "n") // short: sockets are below it
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

// finish ends what is left and removes the folder, unless something is still
// there: through a mount it would delete what that shows. code is what came of
// the tests.
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
