package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// leaseFile has the latest deadline of a run that has not begun yet. A run may begin
// minutes after its spec was written, for example because an image had to be fetched.
const leaseFile = "lease.json"

// earlyRenewals guards the lease files that this process writes, so that an older deadline
// does not replace a newer one.
var earlyRenewals sync.Mutex

// Renew moves the lease deadline of the run in dir. It returns nil if the run has ended,
// and ErrNotFound if the run has no folder. Renew writes the deadline of a run that has not
// begun into a file. The supervisor reads the file after it has written its first record.
// So no deadline is missed: one that comes before the record is in the file, and a later
// one is sent over the socket.
func Renew(ctx context.Context, dir string, d lease.Deadline) error {
	for range 2 {
		_, err := ask(ctx, dir, request{Op: "renew", Deadline: d.At, Number: d.Number})
		if !errors.Is(err, driver.ErrNotFound) {
			return err
		}
		if err := renewEarly(dir, d); err != nil {
			return err
		}
		if _, err := Query(dir); errors.Is(err, driver.ErrNotFound) {
			return nil
		}
	}
	return nil
}

// renewEarly writes the deadline of a run that has not begun into the lease file.
func renewEarly(dir string, d lease.Deadline) error {
	earlyRenewals.Lock()
	defer earlyRenewals.Unlock()
	before, err := readLease(dir)
	switch {
	case err != nil:
		return err
	case lease.Newer(before, d) == before:
		return nil
	}
	err = writeJSON(filepath.Join(dir, leaseFile), d)
	if missing(err) {
		return driver.ErrNotFound
	}
	return err
}

// readLease returns the deadline in the lease file, or the zero value if there is no file.
func readLease(dir string) (d lease.Deadline, err error) {
	err = readJSON(filepath.Join(dir, leaseFile), &d)
	if missing(err) {
		return d, nil
	}
	return d, err
}

// errLate: the run's lease ended before its command was started.
var errLate = errors.New("its lease ended before the command was started")

// newGuard returns the guard of a run whose first record is written. The run may have got
// its first deadline after its spec was written, because a newer version of the job is
// bound by a lease.
func newGuard(spec Spec) (lease.Guard, error) {
	g := lease.NewGuard(lease.Deadline{At: spec.LeaseDeadline, Number: spec.LeaseNumber}, spec.StopGrace)
	d, readErr := readLease(".")
	g.Renew(d)
	if spec.LeaseDeadline == 0 && d.At == 0 {
		return g, readErr
	}
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil && !missing(err) { // a kernel may have no time namespaces
		return g, err
	}
	return g, errors.Join(sameClock(string(offsets)), readErr)
}

// sameClock checks that a process has the host's CLOCK_BOOTTIME, on which deadlines are
// counted. A container may have a time namespace in which that clock differs. offsets are
// the timens_offsets of the process (time_namespaces(7)).
func sameClock(offsets string) error {
	for line := range strings.Lines(offsets) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "boottime" && (f[1] != "0" || f[2] != "0") {
			return fmt.Errorf("lease: the clock of the container differs from the host's by %s s: remove its time namespace", f[1])
		}
	}
	return nil
}

// effect does to the command what the guard decided.
func (s *supervisor) effect(e lease.Effect) {
	if s.guard.Cause() == lease.Expired {
		s.extras.close() // nothing is forked after the deadline
	}
	switch e {
	case lease.Term:
		_ = unix.Kill(-s.rec.Group, cmp.Or(unix.Signal(s.spec.KillSignal), unix.SIGTERM))
	case lease.Kill:
		_ = unix.Kill(-s.rec.Group, unix.SIGKILL)
	}
}

// commandEnd says why the command ended.
func (s *supervisor) commandEnd() (driver.Cause, string) {
	switch s.guard.Cause() {
	case lease.Stopped:
		return driver.CauseStopped, "stopped by the agent"
	case lease.Expired:
		return driver.CauseLeaseExpired, "no renewal came before the lease ended"
	}
	return driver.CauseExited, ""
}
