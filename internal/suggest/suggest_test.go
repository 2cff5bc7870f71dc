package suggest_test

import (
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/suggest"
)

func TestDistanceCountsEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"docker", "docker", 0},
		{"dokcer", "docker", 1}, // a swap
		{"docer", "docker", 1},
		{"dockker", "docker", 1},
		{"dicker", "docker", 1},
		{"lable", "labels", 2},
		{strings.Repeat("a", 65), "a", 65}, // too long to compare
	} {
		if got := suggest.Distance(c.a, c.b); got != c.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestNearestIsWithinTheLimit(t *testing.T) {
	known := []string{"count", "counts", "tasks", "constraints"}
	for _, c := range []struct{ name, want string }{
		{"cuont", "count"},
		{"Tasks", "tasks"},
		{"contraint", "constraints"},
		{"volumes", ""},
		{"", ""},
	} {
		if got := suggest.Nearest(c.name, known); got != c.want {
			t.Errorf("Nearest(%q) = %q, want %q", c.name, got, c.want)
		}
	}
	if got := suggest.Within("volumes", []string{"volume_folders"}, 7); got != "volume_folders" {
		t.Errorf("Within 7 edits: %q", got)
	}
}

func TestListNamesTheFirst(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, ""}, {[]string{"a", "b"}, "a, b"}, {[]string{"a", "b", "c", "d"}, "a, b and 2 more"},
	} {
		if got := suggest.List(c.names, 2); got != c.want {
			t.Errorf("%q: %q, want %q", c.names, got, c.want)
		}
	}
}
