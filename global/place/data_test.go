package place

import (
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// TestDataToMove: the score of a region falls with the time to move the data to it, half at ten minutes.
func TestDataToMove(t *testing.T) {
	t.Parallel()
	at := func(rtt time.Duration) target {
		return target{name: "oslo", Distance: topology.Distance{RTT: rtt, Source: topology.Measured, State: topology.OK}}
	}
	for _, c := range []struct {
		gib     int64
		rtt     time.Duration
		percent int
		says    string
	}{
		{50, 0, 100, "is oslo"},
		{50, 47 * time.Millisecond, 50, "takes about 10m2s"},
		{50, 180 * time.Millisecond, 21, "takes about 38m24s"},
		{1, 180 * time.Millisecond, 93, "takes about 46s"},
		{1 << 30, 180 * time.Millisecond, 0, "takes about 8760h0m0s"},
	} {
		n := &Near{Selector: Selector{Name: "oslo"}, Data: c.gib << 30, Weight: 100}
		if got := int(100*n.closeness(at(c.rtt)) + 0.5); got != c.percent {
			t.Errorf("%d GiB over %s: %d %%, want %d", c.gib, c.rtt, got, c.percent)
		}
		if got := n.say(at(c.rtt)); !strings.Contains(got, c.says) {
			t.Errorf("%d GiB over %s: %q does not say %q", c.gib, c.rtt, got, c.says)
		}
	}
}
