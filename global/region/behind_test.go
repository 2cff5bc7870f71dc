package region

import (
	"testing"
	"time"
)

// TestBehind: a region that was lost gets no new slots until its log has the orders of its welcome,
// also after a reconnect and at another global server.
func TestBehind(t *testing.T) {
	hello := func(stream, acked, required uint64) Hello {
		return Hello{Stream: stream, ClusterID: "c", Incarnation: 1, Term: 1, Level: 2, Acked: acked, Required: required}
	}
	for _, c := range []struct {
		what  string
		fence uint64
		steps []Event
		want  bool
	}{
		{"never lost", 0, []Event{hello(1, 0, 5)}, false},
		{"no session", 1, nil, false},
		{"lost, and welcomed", 1, []Event{hello(1, 0, 5)}, true},
		{"a message about something else", 1, []Event{hello(1, 0, 5), Received{1}}, true},
		{"an earlier position", 1, []Event{hello(1, 0, 5), OrdersAcked{Stream: 1, Position: 4}}, true},
		{"the orders of the welcome", 1, []Event{hello(1, 0, 5), OrdersAcked{Stream: 1, Position: 5}}, false},
		{"a position on an earlier stream", 1, []Event{hello(1, 0, 5), hello(2, 0, 5), OrdersAcked{Stream: 1, Position: 5}}, true},
		{"a reconnect before the orders", 1, []Event{hello(1, 0, 5), StreamEnded{1}, hello(2, 4, 6)}, true},
		{"a reconnect after the orders", 1, []Event{hello(1, 0, 5), OrdersAcked{Stream: 1, Position: 5}, StreamEnded{1}, hello(2, 5, 5)}, false},
		{"disconnected", 1, []Event{hello(1, 0, 5), StreamEnded{1}}, false},
	} {
		config := Config{Lease: 15 * time.Second, ActiveUntil: time.Hour}
		s := Open(config, Record{Name: "sea", ClusterID: "c", Incarnation: 1, Term: 1, Fence: c.fence}, 0)
		for i, e := range c.steps {
			s, _ = Step(config, s, time.Duration(i)*time.Second, e)
		}
		if got := s.Behind(); got != c.want {
			t.Errorf("%s: behind %v", c.what, got)
		}
	}
}
