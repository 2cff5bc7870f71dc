package supervise

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// TestPauseGrowsWithTheWait: an event that comes early is seen at once. After a long wait
// the polls are rare. After other work the pauses are short again.
func TestPauseGrowsWithTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, takes := range []time.Duration{time.Millisecond, 150 * time.Millisecond, time.Second, time.Minute} {
			var p Pace
			began, looks := time.Now(), 0
			for time.Since(began) < takes {
				if err := p.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				looks++
			}
			late := time.Since(began) - takes
			if late > leastPause+takes/32 || late > mostPause || looks > 190+int(4*takes/time.Second) {
				t.Errorf("what takes %s is seen %s later, after %d looks", takes, late, looks)
			}
			time.Sleep(time.Second)
			began = time.Now()
			if <-p.After(); time.Since(began) != leastPause {
				t.Errorf("then the first pause is %s", time.Since(began))
			}
		}
	})
}

// TestSupervisorThatClosesConnectionsIsPolledRarely: a supervisor that closes every connection, which may
// happen in a container, is polled four times a second.
func TestSupervisorThatClosesConnectionsIsPolledRarely(t *testing.T) {
	dir := t.TempDir()
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := writeRecord(dir, record{Boot: BootID(), Status: driver.Status{State: driver.Running, Started: time.Unix(1, 0).UTC()}}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, socketFile))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan int)
	go func() {
		n := 0
		for {
			c, err := l.Accept()
			if err != nil {
				asked <- n
				return
			}
			n++
			c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := Wait(ctx, dir); !errors.Is(err, ctx.Err()) {
		t.Error(err)
	}
	l.Close()
	if n := <-asked; n < 2 || n > 150 {
		t.Errorf("asked %d times within a second", n)
	}
}
