package reserve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// reopened is a driver that can be replaced by the next one of the same folder.
type reopened struct {
	*Driver
	dir string
}

func (r *reopened) open(t *testing.T, cfg Config) *reopened {
	t.Helper()
	if r.Driver != nil {
		r.Driver.Close()
	}
	cfg.Dir = r.dir
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Driver = d
	return r
}

func since(begin time.Time) func() time.Duration {
	return func() time.Duration { return time.Since(begin) + time.Minute }
}

func TestContract(t *testing.T) {
	defer goleak.VerifyNone(t)
	cfg := Config{Clock: since(time.Now()), BootID: "boot"}
	d := (&reopened{dir: t.TempDir()}).open(t, cfg)
	t.Cleanup(func() { d.Driver.Close() })
	drivertest.Run(t, drivertest.Subject{
		Driver:  d,
		Reopen:  func(t *testing.T) driver.Driver { return d.open(t, cfg) },
		Clock:   cfg.Clock,
		Sleeper: map[string]any{},
		Exiter:  func(int, string, string) map[string]any { return map[string]any{"ttl": "1ms"} },
		Invalid: map[string]any{"tll": "10m"},
		Silent:  true,
	})
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		value any
		want  time.Duration
		bad   bool
	}{
		{"10m", 10 * time.Minute, false},
		{"0s", 0, false},
		{"-1s", 0, true},
		{"90000h", 0, true},
		{"ten", 0, true},
		{10.0, 0, true},
	} {
		got, err := ttl(map[string]any{"ttl": c.value})
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("ttl %v: %s, %v", c.value, got, err)
		}
	}
}

func task(alloc string, config map[string]any, l lease.Deadline) driver.Task {
	return driver.Task{ID: driver.ID{Alloc: alloc, Task: "hold", Run: 1}, Config: config, Lease: l}
}

// TestClocks says what time does to a reservation: in the same boot, after a reboot, and while nobody
// runs the driver.
func TestClocks(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		rec   record
		now   moment
		cause driver.Cause
		ended bool
		next  time.Duration
	}{
		{"no ttl", record{}, moment{began.Add(1000 * time.Hour), 1000 * time.Hour, "a"}, "", false, 0},
		{"before ttl", record{TTL: time.Hour}, moment{began.Add(59 * time.Minute), 69 * time.Minute, "a"}, "", false, time.Minute},
		{"after ttl", record{TTL: time.Hour}, moment{began.Add(time.Hour), 70 * time.Minute, "a"}, driver.CauseExited, true, 0},
		{"the wall clock jumps", record{TTL: time.Hour}, moment{began.Add(5 * time.Hour), 11 * time.Minute, "a"}, "", false, 59 * time.Minute},
		{"another boot before ttl", record{TTL: time.Hour}, moment{began.Add(20 * time.Minute), time.Minute, "b"}, "", false, 40 * time.Minute},
		{"another boot after ttl", record{TTL: time.Hour}, moment{began.Add(61 * time.Minute), 500 * time.Hour, "b"}, driver.CauseExited, true, 0},
		{"another boot, no ttl", record{}, moment{began.Add(20 * time.Hour), time.Minute, "b"}, "", false, 0},
		{"leased", record{Lease: lease.Deadline{At: 20 * time.Minute}}, moment{began.Add(5 * time.Minute), 15 * time.Minute, "a"}, "", false, 5 * time.Minute},
		{"lease over", record{Lease: lease.Deadline{At: 20 * time.Minute}}, moment{began.Add(10 * time.Minute), 20 * time.Minute, "a"}, driver.CauseLeaseExpired, true, 0},
		{"leased, another boot", record{Lease: lease.Deadline{At: 20 * time.Minute}}, moment{began.Add(11 * time.Minute), time.Minute, "b"}, driver.CauseRebooted, true, 0},
		{"the earlier of both", record{TTL: time.Hour, Lease: lease.Deadline{At: 20 * time.Minute}}, moment{began, 10 * time.Minute, "a"}, "", false, 10 * time.Minute},
	} {
		c.rec.Started, c.rec.Boot, c.rec.Clock = began, "a", 10*time.Minute
		ended, next := c.rec.state(c.now)
		if (ended != nil) != c.ended || next != c.next || ended != nil && ended.Cause != c.cause {
			t.Errorf("%s: %+v, next in %s", c.name, ended, next)
		}
	}
}

// TestEndsOfThousandsAreDurable: thousands of reservations begin at the same time, end after their ttl,
// and have the same end for the next driver.
func TestEndsOfThousandsAreDurable(t *testing.T) {
	const n = 2000
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dir: dir, Clock: since(time.Now()), BootID: "boot"}
		d, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		ends := make([]driver.Status, n)
		for i := range n {
			all.Go(func() {
				x := task(fmt.Sprintf("alloc-%d", i), map[string]any{"ttl": "40m"}, lease.Deadline{})
				if err := d.Start(t.Context(), x); err != nil {
					t.Error(err)
					return
				}
				ends[i], err = d.Wait(t.Context(), x.ID)
				if err != nil || ends[i].ExitCode != 0 || ends[i].Finished.Sub(ends[i].Started) != 40*time.Minute {
					t.Errorf("%+v, %v", ends[i], err)
				}
			})
		}
		all.Wait()
		d.Close()
		next, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		for i := range n {
			id := driver.ID{Alloc: fmt.Sprintf("alloc-%d", i), Task: "hold", Run: 1}
			if st, err := next.Status(t.Context(), id); err != nil || st != ends[i] {
				t.Fatalf("after the restart %+v, before %+v: %v", st, ends[i], err)
			}
		}
	})
}

// TestAbandonedCopy: a driver that was killed left no half-written record, so the next one knows each run
// that Start confirmed.
func TestAbandonedCopy(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir, Clock: since(time.Now()), BootID: "boot"}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	x := task("alloc", nil, lease.Deadline{})
	if err := d.Start(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	d.Close()
	// The closed file takes no write: a start fails, nothing is known of it, and Stop stays harmless.
	y := task("other", nil, lease.Deadline{})
	if err := d.Start(t.Context(), y); !errors.Is(err, driver.ErrStart) {
		t.Errorf("start without a file: %v", err)
	}
	if _, err := d.Status(t.Context(), y.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("status of a run that did not start: %v", err)
	}
	if err := d.Stop(context.Background(), x.ID, 0); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("stop without a file: %v", err)
	}
	next, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if st, err := next.Status(t.Context(), x.ID); err != nil || st.State != driver.Running {
		t.Errorf("%+v, %v", st, err)
	}
}
