package boottime

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// host has clocks that a test moves.
type host struct{ wall, monotonic, boot time.Duration }

func (h *host) clock() *Clock {
	return newClock(func() (wall, monotonic time.Duration) { return h.wall, h.monotonic }, func() time.Duration { return h.boot })
}

// runs lets time pass. asleep is the part in which the host was suspended.
func (h *host) runs(awake, asleep time.Duration) {
	h.wall, h.monotonic, h.boot = h.wall+awake+asleep, h.monotonic+awake, h.boot+awake+asleep
}

func TestClockNoticesASuspendAtOnce(t *testing.T) {
	h := &host{wall: 100 * time.Hour, monotonic: 5 * time.Hour, boot: 7 * time.Hour}
	c := h.clock()
	for _, asleep := range []time.Duration{0, time.Hour, 0, 80 * time.Microsecond, 0, 3 * time.Second} {
		h.runs(10*time.Microsecond, asleep)
		if now := c.Now(); now != h.boot {
			t.Errorf("%s after a suspend of %s, want %s", now, asleep, h.boot)
		}
	}
}

// A wall clock that was set hides a suspend for one millisecond at most.
func TestClockWithAWallClockThatIsSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &host{wall: 100 * time.Hour, monotonic: 5 * time.Hour, boot: 7 * time.Hour}
		c := h.clock()
		latest := c.Now()
		span := rapid.Int64Range(0, int64(2*trusted))
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			asleep, awake := time.Duration(span.Draw(t, "asleep")), time.Duration(span.Draw(t, "awake"))
			h.runs(awake, asleep)
			set := rapid.Bool().Draw(t, "set")
			if set {
				h.wall -= asleep
			}
			now, exact := c.Now(), awake >= trusted || !set && asleep >= jitter
			if now < latest || now > h.boot || exact && now != h.boot {
				t.Fatalf("%s at %s, after %s", now, h.boot, latest)
			}
			latest = now
		}
	})
}

func TestClockOfManyReaders(t *testing.T) {
	c := NewClock()
	var mu sync.Mutex
	var seen time.Duration
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 20_000 {
				mu.Lock()
				before := seen
				mu.Unlock()
				now := c.Now()
				if exact := Now(); now < before || now > exact {
					t.Errorf("%s after %s, at %s", now, before, exact)
					return
				}
				mu.Lock()
				seen = max(seen, now)
				mu.Unlock()
			}
		})
	}
	readers.Wait()
}

func BenchmarkClock(b *testing.B) {
	c := NewClock()
	for b.Loop() {
		c.Now()
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
