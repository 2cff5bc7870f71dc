package uplink

import (
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/accept"
)

func TestDisconnectedReasonNamesTheLongestSilence(t *testing.T) {
	now := time.Unix(100_000, 0)
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixNano() }
	end := " and may still run it (`nusa node remove n1` if it is gone for good)"
	for _, c := range []struct {
		ranges []accept.DisconnectedRange
		count  int32
		want   string
	}{
		{[]accept.DisconnectedRange{{From: 0, To: 1, NodeName: "n1", SinceUnixNano: ago(31 * time.Second)}}, 1, "n1 has been silent for less than a minute" + end},
		{[]accept.DisconnectedRange{{From: 0, To: 2, NodeName: "n1", SinceUnixNano: ago(5*time.Minute + time.Second)}}, 2, "n1 has been silent for 5m" + end},
		{[]accept.DisconnectedRange{
			{From: 0, To: 2, NodeName: "n2", SinceUnixNano: ago(time.Minute)}, {From: 4, To: 5, NodeName: "n1", SinceUnixNano: ago(125 * time.Minute)},
		}, 3, "n1 and 1 more have been silent for 2h5m" + strings.Replace(end, "run it", "run them", 1)},
	} {
		got := disconnectedReason(c.ranges, now)
		if len(got) != 1 || got[0].GetCount() != c.count || got[0].GetMessage() != c.want {
			t.Errorf("%v, want %q", got, c.want)
		}
	}
	if got := disconnectedReason(nil, now); got != nil {
		t.Errorf("no instance is disconnected: %v", got)
	}
}
