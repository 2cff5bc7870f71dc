package region

import (
	"testing"
	"time"
)

// TestHealthCountsOverReconnects: the health of a region counts from its first session on. It
// starts again only after a silence, a loss or a restore of the region's log.
func TestHealthCountsOverReconnects(t *testing.T) {
	const second = time.Second
	c := Config{Lease: 15 * second, ActiveUntil: time.Hour}
	hello := func(stream, incarnation uint64) Hello {
		return Hello{Stream: stream, ClusterID: "c", Incarnation: incarnation, Term: 1, Level: 1, Required: 1}
	}
	for _, script := range []struct {
		what  string
		want  time.Duration // the expected result at 60 s, after a first session at 10 s
		steps map[time.Duration]Event
	}{
		{"one session", 50 * second, nil},
		{"a short reconnect", 50 * second, map[time.Duration]Event{20 * second: StreamEnded{1}, 24 * second: hello(2, 1)}},
		{"a newer stream", 50 * second, map[time.Duration]Event{20 * second: hello(2, 1)}},
		{"a long reconnect", 34 * second, map[time.Duration]Event{20 * second: StreamEnded{1}, 26 * second: hello(2, 1)}},
		{"no session", 0, map[time.Duration]Event{59 * second: StreamEnded{1}}},
		{"a restored log", 38 * second, map[time.Duration]Event{20 * second: StreamEnded{1}, 22 * second: hello(2, 2)}},
		{"a verdict", 38 * second, map[time.Duration]Event{20 * second: Stored{Record{Name: "sea", ClusterID: "c", Incarnation: 1, Term: 1, Fence: 1, Lost: true}}, 22 * second: hello(2, 1)}},
		{"a verdict, and the return is stored before the hello", 38 * second, map[time.Duration]Event{
			20 * second: Stored{Record{Name: "sea", ClusterID: "c", Incarnation: 1, Term: 1, Fence: 1, Lost: true}},
			22 * second: Stored{Record{Name: "sea", ClusterID: "c", Incarnation: 1, Term: 1, Fence: 1}}, 23 * second: hello(2, 1),
		}},
		{"a silence within the session", 29 * second, map[time.Duration]Event{20 * second: nil, 31 * second: Received{1}}},
		{"a server that was suspended", 29 * second, map[time.Duration]Event{20 * second: nil, 31 * second: Resumed{}}},
	} {
		s := Open(c, Record{Name: "sea", ClusterID: "c", Incarnation: 1, Term: 1}, 0)
		s, _ = Step(c, s, 10*second, hello(1, 1))
		quiet := false
		for now := 11 * second; now <= 60*second; now += second {
			if e, planned := script.steps[now]; planned {
				quiet = e == nil
				if e != nil {
					s, _ = Step(c, s, now, e)
				}
			}
			if s.Connected() && !quiet {
				s, _ = Step(c, s, now, Received{s.Stream})
			}
		}
		if got := s.ConnectedFor(60 * second); got != script.want {
			t.Errorf("%s: healthy for %s, want %s", script.what, got, script.want)
		}
	}
}
