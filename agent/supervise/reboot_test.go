package supervise

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// bystander starts a process and returns its process id and start time.
func bystander(t *testing.T) (pid int, ticks uint64) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	st, err := readStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return st.pid, st.ticks
}

// TestRebootEndsTheRecordedRun: after a restart of the host the run has ended, even if another
// process now has its process id, group, session and start time. That process is not touched.
func TestRebootEndsTheRecordedRun(t *testing.T) {
	pid, ticks := bystander(t)
	for _, c := range []struct {
		name string
		boot string
		want driver.Cause
	}{{"another boot", "00000000-0000-0000-0000-000000000000", driver.CauseRebooted}, {"no boot on record", "", driver.CauseRebooted}} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			rec := record{Status: driver.Status{State: driver.Running, PID: pid}, Boot: c.boot,
				Session: pid, SessionTicks: ticks, Group: pid, Ticks: ticks}
			if err := writeRecord(dir, rec); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first round records the end, the second one reads it
				st, err := Query(dir)
				if err != nil || st.State != driver.Ended || st.Cause != c.want || st.ExitCode != 137 || st.Message == "" {
					t.Errorf("%+v, %v", st, err)
				}
			}
			if err := unix.Kill(pid, 0); err != nil || !alive(pid) {
				t.Errorf("the bystander is gone: %v", err)
			}
		})
	}
}

// TestPartlyWrittenRecordCountsAsAnEnd: a record that was written only partly because of a power loss
// counts as an end, not as a permanent error.
func TestPartlyWrittenRecordCountsAsAnEnd(t *testing.T) {
	for name, left := range map[string]string{"empty": "", "zeros": "\x00\x00\x00\x00", "half": `{"State":2,"PI`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, statusFile), []byte(left), 0o600); err != nil {
				t.Fatal(err)
			}
			st, err := Query(dir)
			if err != nil || st.State != driver.Ended || st.Cause != driver.CauseRebooted {
				t.Errorf("%+v, %v", st, err)
			}
			// While the run is supervised its record counts as valid, even if the container has
			// written into the file.
			box := filepath.Join(t.TempDir(), Box)
			if err := os.Mkdir(box, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(box, statusFile), []byte(left), 0o600); err != nil {
				t.Fatal(err)
			}
			if st, err := Query(box); err == nil {
				t.Errorf("a container's own words are believed: %+v", st)
			}
		})
	}
}

// TestLastWholeRecordCounts: the last whole line counts, even if a full disk or a power loss
// has damaged other lines.
func TestLastWholeRecordCounts(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, statusFile)
	for _, state := range []driver.State{driver.Starting, driver.Running, driver.Ended} {
		for _, cut := range []string{"", "\n{\"State\":3,\"PI", "\x00\x00"} {
			rec := record{Boot: "the boot before", Status: driver.Status{State: state, PID: len(cut)}}
			if err := writeRecord(dir, rec); err != nil {
				t.Fatal(err)
			}
			reserve(dir)
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteString(cut)
			err = errors.Join(err, f.Close())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := readRecord(dir); err != nil || got != rec {
				t.Errorf("%+v after %q is read as %+v, %v", rec, cut, got, err)
			}
		}
	}
}
