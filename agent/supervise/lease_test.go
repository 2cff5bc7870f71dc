package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/internal/boottime"
)

// stubborn is a script that ignores the request to end.
const stubborn = `trap "" TERM; echo up; while :; do sleep 0.01; done`

// untilClock waits until a time on CLOCK_BOOTTIME.
func untilClock(t *testing.T, at time.Duration) {
	t.Helper()
	limit, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for boottime.Now() < at {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("the clock does not reach %s", at)
		}
	}
}

// TestLateCommandIsNotForked: a command is not started after its deadline. The deadline
// passes before the spec is written, or while the run waits for its supervisor.
func TestLateCommandIsNotForked(t *testing.T) {
	for name, early := range map[string]time.Duration{"before the spec": 0, "before the supervisor": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			dir, mark := t.TempDir(), filepath.Join(t.TempDir(), "ran")
			deadline := boottime.Now() + early
			if err := WriteSpec(dir, spec("touch "+mark, func(s *Spec) { s.LeaseDeadline, s.LeaseNumber = deadline, 1 })); err != nil {
				t.Fatal(err)
			}
			untilClock(t, deadline)
			p, st, err := newSpawner(t).Spawn(t.Context(), dir)
			if err != nil || st.State != driver.Ended || st.Cause != driver.CauseLateStart || st.StartError() != nil {
				t.Fatalf("%+v, %v", st, err)
			}
			_, _ = p.Wait()
			if again, err := Wait(t.Context(), dir); err != nil || again != st {
				t.Errorf("asked again %+v, %v", again, err)
			}
			if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the command ran: %v", err)
			}
		})
	}
}

// TestRenewalBeforeTheStart: a renewal that comes after the spec and before the supervisor
// is effective, in any order of the renewals. The renewed deadline ends the command.
func TestRenewalBeforeTheStart(t *testing.T) {
	dir := t.TempDir()
	if err := Renew(t.Context(), filepath.Join(dir, "none"), lease.Deadline{At: 1, Number: 1}); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("without a folder: %v", err)
	}
	if err := WriteSpec(dir, spec("echo up; sleep 60", func(s *Spec) { s.LeaseDeadline, s.LeaseNumber = boottime.Now(), 1 })); err != nil {
		t.Fatal(err)
	}
	for length := time.Second; ; length *= 2 { // repeat until the machine is fast enough
		end := boottime.Now() + length
		number := uint64(end)
		for _, d := range []lease.Deadline{{At: end, Number: number}, {At: 1, Number: number - 1}, {At: end + time.Hour, Number: number - 1}} {
			if err := Renew(t.Context(), dir, d); err != nil {
				t.Fatal(err)
			}
		}
		p, st, err := newSpawner(t).Spawn(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if st.Cause == driver.CauseLateStart && length < patience {
			_, _ = p.Wait()
			dir = t.TempDir()
			if err := WriteSpec(dir, spec("echo up; sleep 60", func(s *Spec) { s.LeaseDeadline, s.LeaseNumber = boottime.Now(), 1 })); err != nil {
				t.Fatal(err)
			}
			continue
		}
		st, err = Wait(t.Context(), dir)
		if err != nil || st.Cause != driver.CauseLeaseExpired || boottime.Now() < end {
			t.Errorf("at %s, deadline %s: %+v, %v", boottime.Now(), end, st, err)
		}
		_, _ = p.Wait()
		return
	}
}

// TestFirstDeadlineBeforeTheStart: a run gets its first deadline after its spec was written.
func TestFirstDeadlineBeforeTheStart(t *testing.T) {
	dir := t.TempDir()
	if err := WriteSpec(dir, spec("sleep 5")); err != nil {
		t.Fatal(err)
	}
	if err := Renew(t.Context(), dir, lease.Deadline{At: boottime.Now(), Number: 1}); err != nil {
		t.Fatal(err)
	}
	p, st, err := newSpawner(t).Spawn(t.Context(), dir)
	if err != nil || st.Cause != driver.CauseLateStart {
		t.Errorf("%+v, %v", st, err)
	}
	if st.State == driver.Running {
		_ = p.Kill()
	}
	_, _ = p.Wait()
}

// TestRenewalOfAnotherStartIsForgotten: renewals from before a restart of the host do not
// count, although their times and numbers are greater.
func TestRenewalOfAnotherStartIsForgotten(t *testing.T) {
	dir := t.TempDir()
	if err := Renew(t.Context(), dir, lease.Deadline{At: boottime.Now() + time.Hour, Number: 1 << 60}); err != nil {
		t.Fatal(err)
	}
	if err := WriteSpec(dir, spec("sleep 60", func(s *Spec) { s.LeaseDeadline, s.LeaseNumber = boottime.Now(), 1 })); err != nil {
		t.Fatal(err)
	}
	p, st, err := newSpawner(t).Spawn(t.Context(), dir)
	if err != nil || st.Cause != driver.CauseLateStart {
		t.Errorf("%+v, %v", st, err)
	}
	_, _ = p.Wait()
}

// TestOlderRenewalIsIgnored: renewals may arrive in another order than they were sent. A
// newer renewal may set an earlier deadline.
func TestOlderRenewalIsIgnored(t *testing.T) {
	far := boottime.Now() + time.Hour
	r := start(t, spec("echo up; sleep 60", func(s *Spec) { s.LeaseDeadline, s.LeaseNumber = far, 1 }))
	r.untilOutput()
	for _, d := range []lease.Deadline{{At: far, Number: 5}, {At: 1, Number: 4}, {At: 1, Number: 5}} {
		if err := Renew(r.ctx, r.dir, d); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := Query(r.dir); err != nil || st.State != driver.Running {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := Renew(r.ctx, r.dir, lease.Deadline{At: boottime.Now(), Number: 6}); err != nil {
		t.Fatal(err)
	}
	if st := r.wait(); st.Cause != driver.CauseLeaseExpired {
		t.Errorf("%+v", st)
	}
}

// TestPausedSupervisorKillsAtOnce: the stop time counts from the deadline on
// CLOCK_BOOTTIME. A supervisor that was suspended during both kills the command as soon as
// it wakes.
func TestPausedSupervisorKillsAtOnce(t *testing.T) {
	const grace = 2 * time.Second
	deadline := boottime.Now() + time.Second/2
	r := start(t, spec(stubborn, func(s *Spec) { s.LeaseDeadline, s.LeaseNumber, s.StopGrace = deadline, 1, grace }))
	r.untilOutput()
	if err := r.p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	untilClock(t, deadline+grace)
	if err := r.p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	st := r.wait()
	if after := boottime.Now() - deadline - grace; st.Cause != driver.CauseLeaseExpired || st.Signal != 9 || after > grace*2/3 {
		t.Errorf("%+v, %s after the stop time", st, after)
	}
}

// TestNothingIsForkedAfterTheDeadline: while a command has its time to stop, no exec
// command begins.
func TestNothingIsForkedAfterTheDeadline(t *testing.T) {
	deadline := boottime.Now() + time.Second
	r := start(t, spec(`trap "echo asked" TERM; while :; do sleep 0.01; done`, func(s *Spec) {
		s.LeaseDeadline, s.LeaseNumber, s.StopGrace = deadline, 1, patience
	}))
	if out := r.untilOutput(); out != "asked" {
		t.Fatalf("printed %q", out)
	}
	if _, err := Exec(r.ctx, r.dir, driver.Exec{Command: []string{"true"}}); !errors.Is(err, driver.ErrNotRunning) {
		t.Errorf("a further command: %v", err)
	}
}

// TestClockOfAContainer: sameClock refuses a time namespace with another clock, because it would
// shift the deadlines.
func TestClockOfAContainer(t *testing.T) {
	for offsets, shifted := range map[string]bool{
		"": false, "monotonic           0         0\nboottime            0         0\n": false,
		"monotonic          10         0\nboottime            0         0\n": false,
		"monotonic           0         0\nboottime       86400         0\n":  true,
		"monotonic           0         0\nboottime            0        -7\n": true,
	} {
		if err := sameClock(offsets); (err != nil) != shifted || err != nil && !strings.Contains(err.Error(), "time namespace") {
			t.Errorf("%q: %v", offsets, err)
		}
	}
}
