package supervise

import (
	"errors"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// TestForbid: either the supervisor or the caller of Forbid is first, and the first one
// decides whether the run starts.
func TestForbid(t *testing.T) {
	dir := t.TempDir()
	st, err := Forbid(t.Context(), dir, "no")
	if err != nil || st.Cause != driver.CauseStartFailed || st.Message != "no" {
		t.Fatalf("%+v: %v", st, err)
	}
	again, err := Forbid(t.Context(), dir, "other")
	if err != nil || again != st {
		t.Errorf("the second time %+v, first %+v: %v", again, st, err)
	}
	if q, err := Query(dir); err != nil || q != st {
		t.Errorf("asked, %+v: %v", q, err)
	}
	// A supervisor that comes later starts nothing. Otherwise it would fail, because there
	// is no spec.
	if rec, err := readRecord(dir); err != nil || rec.State != driver.Ended {
		t.Errorf("%+v: %v", rec, err)
	}
	// A supervisor that is about to start the run holds the lock, and then writes a record.
	dir = t.TempDir()
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		st  driver.Status
		err error
	}
	ch := make(chan answer, 1)
	go func() {
		st, err := Forbid(t.Context(), dir, "no")
		ch <- answer{st, err}
	}()
	rec := record{Status: driver.Status{State: driver.Ended, ExitCode: 3, Finished: time.Unix(1, 0).UTC()}}
	if err := errors.Join(writeRecord(dir, rec), lock.Close()); err != nil {
		t.Fatal(err)
	}
	if got := <-ch; got.err != nil || got.st.ExitCode != 3 {
		t.Errorf("of one that began: %+v: %v", got.st, got.err)
	}
}
