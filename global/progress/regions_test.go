package progress

import (
	"reflect"
	"testing"
	"time"
)

// TestDivide: how far each region of a rollout is.
func TestDivide(t *testing.T) {
	reach := Reach{}
	for _, s := range []struct {
		region            string
		outdated, changed bool
	}{{"done", false, true}, {"new", false, true}, {"new", false, false}, {"old", true, false}, {"old", false, true}, {"both", false, true}, {"both", true, true}, {"other", false, false}, {"", false, true}} {
		reach.Add(s.region, s.outdated, s.changed)
	}
	if want := (Reach{"done": true, "new": true, "old": false, "both": false}); !reflect.DeepEqual(reach, want) {
		t.Errorf("reached %v, want %v", reach, want)
	}
	at := time.Unix(1, 0)
	waits, ended, failed := Part{Name: "w"}, Part{Name: "e", Reached: true, Ended: at, Reported: true, Complete: true}, Part{Name: "f", Reached: true, Ended: at, FailedBecause: "it crashes"}
	runs, stale := Part{Name: "r", Reached: true, Reported: true, Complete: true}, Part{Name: "u", Reached: true, Complete: true}
	failing, earlier := Part{Name: "x", Reached: true, Reported: true, Failed: 2}, Part{Name: "y", Reached: true, Failed: 2}
	for _, c := range []struct {
		name string
		in   []Part
		want Regions
	}{
		{"nothing", nil, Regions{}},
		{"each region is somewhere else", []Part{failing, waits, failed, ended}, Regions{Updating: []string{"x"}, Waiting: []string{"w"}, Failing: map[string]string{"x": "2 instances failed"}, Failed: []string{"f: it crashes"}}},
		{"everything runs, and no plan has stored that yet", []Part{runs, waits}, Regions{Updating: []string{"r"}, Waiting: []string{"w"}}},
		{"everything runs in the last region", []Part{runs, ended}, Regions{}},
		{"a region has ended, and does not run any more", []Part{{Name: "b", Reached: true, Ended: at, Reported: true}, waits}, Regions{Updating: []string{"b"}, Waiting: []string{"w"}}},
		{"the last region has ended, and does not run any more", []Part{{Name: "b", Reached: true, Ended: at, Reported: true}, ended}, Regions{}},
		{"a region has ended, and its report is about an earlier version", []Part{{Name: "b", Reached: true, Ended: at}, waits}, Regions{Waiting: []string{"w"}}},
		{"the report is about an earlier version", []Part{stale, earlier}, Regions{Updating: []string{"u", "y"}}},
	} {
		if got := Divide(c.in); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestPauseLeft: the pause begins with the latest end, and an operator may end it.
func TestPauseLeft(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	ends := map[string]time.Time{"a": at(10), "c": at(30), "b": at(30)}
	for _, c := range []struct {
		name     string
		pause    time.Duration
		unpaused time.Time
		now      int
		left     time.Duration
		after    string
	}{
		{"no pause", 0, time.Time{}, 31, 0, ""},
		{"after the latest of two equal ends", time.Minute, time.Time{}, 40, 50 * time.Second, "b"},
		{"it is over", time.Minute, time.Time{}, 91, 0, "b"},
		{"resumed after each end", time.Minute, at(30), 40, 0, ""},
		{"resumed before the latest end", time.Minute, at(20), 40, 50 * time.Second, "b"},
	} {
		if left, after := PauseLeft(c.pause, ends, c.unpaused, at(c.now)); left != c.left || after != c.after {
			t.Errorf("%s: %s after %q, want %s after %q", c.name, left, after, c.left, c.after)
		}
	}
}
