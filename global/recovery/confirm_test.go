package recovery

import (
	"strings"
	"testing"
	"time"
)

// TestNotesSayWhatToDo: while the global tier itself keeps regions out, no note advises to declare
// one of them lost.
func TestNotesSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		note, want string
		lose       bool
	}{
		{Note("sea", false, 17*time.Second, 2, 0), "is welcomed in 17s", false},
		{Note("sea", false, 0, 2, 0), "connect it", true},
		{Note("sea", true, -time.Second, 2, 3), "does not order: 3", false},
		{Note("sea", true, 0, 1, 3), "upgrade them", false},
		{Note("sea", true, 0, 2, 0), "takes some seconds, or after a restart", false},
		{Refused(false, false), "has not called", false},
		{Refused(true, false), "when it calls again: it waits for `nusa server recover`", false},
		{Refused(true, true), "said what it runs: it waits for `nusa server recover`", false},
	} {
		if !strings.Contains(c.note, c.want) || strings.Contains(c.note, "nusa region lose sea") != c.lose {
			t.Errorf("%q, want %q", c.note, c.want)
		}
	}
}
