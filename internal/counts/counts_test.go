package counts

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestSurplusMovesToStopping(t *testing.T) {
	for _, c := range []struct {
		name   string
		in     *nusav1.InstanceCounts
		wanted int32
		want   *nusav1.InstanceCounts
	}{
		{"as wanted", &nusav1.InstanceCounts{Running: 3}, 3, &nusav1.InstanceCounts{Running: 3}},
		{"too few", &nusav1.InstanceCounts{Running: 1}, 3, &nusav1.InstanceCounts{Running: 1}},
		{"scaled down", &nusav1.InstanceCounts{Running: 3}, 1, &nusav1.InstanceCounts{Running: 1, Stopping: 2}},
		{"and updated", &nusav1.InstanceCounts{Running: 2, Starting: 1, Outdated: 3}, 1, &nusav1.InstanceCounts{Starting: 1, Outdated: 1, Stopping: 2}},
		{"one waits", &nusav1.InstanceCounts{Running: 2, Pending: 1}, 1, &nusav1.InstanceCounts{Pending: 1, Stopping: 2}},
		{"nothing wanted", &nusav1.InstanceCounts{Running: 1, Starting: 1, Lost: 1, Stopped: 4}, 0, &nusav1.InstanceCounts{Stopped: 4, Stopping: 3}},
		{"what has ended stops no more", &nusav1.InstanceCounts{Complete: 2, Running: 1}, 1, &nusav1.InstanceCounts{Complete: 2, Stopping: 1}},
	} {
		if MoveSurplusToStopping(c.in, c.wanted); !proto.Equal(c.in, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.in, c.want)
		}
	}
}

// TestOfVersion: an instance of an earlier version that starts again and again is not a new one that becomes healthy.
func TestOfVersion(t *testing.T) {
	for _, c := range []struct {
		name              string
		run, start, old   int32
		running, starting int32
	}{
		{"all have the version", 3, 1, 0, 3, 1},
		{"the region waits for the version", 3, 0, 3, 0, 0},
		{"an instance starts in a region that waits", 2, 1, 3, 0, 0},
		{"the first of three gets the version", 2, 1, 2, 0, 1},
		{"it runs", 3, 0, 2, 1, 0},
		{"the counts are of different times", 0, 0, 1, 0, 0},
	} {
		in := &nusav1.InstanceCounts{Running: c.run, Starting: c.start, Outdated: c.old}
		if running, starting := OfVersion(in); running != c.running || starting != c.starting {
			t.Errorf("%s: %d run, %d start, want %d and %d", c.name, running, starting, c.running, c.starting)
		}
	}
}

func TestAdd(t *testing.T) {
	one := &nusav1.InstanceCounts{Pending: 1, Starting: 2, Running: 3, Complete: 4, Failed: 5, Stopped: 6, Lost: 7, Outdated: 8, Stopping: 9, Unknown: 10, Held: 11}
	sum := &nusav1.InstanceCounts{}
	Add(sum, one)
	if !proto.Equal(sum, one) {
		t.Errorf("0 + %v = %v", one, sum)
	}
	if got := Live(one); got != 22 {
		t.Errorf("live: %d, want 22", got)
	}
}
