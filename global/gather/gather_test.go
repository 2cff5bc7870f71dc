package gather

import (
	"testing"
	"time"
)

// TestNotesAreBounded: a region that says each second that entries are missing causes few notes.
func TestNotesAreBounded(t *testing.T) {
	r, now, notes := &region{}, time.Unix(1_000_000, 0), 0
	for range 3600 {
		if r.mayNote(now) {
			notes++
		}
		now = now.Add(time.Second)
	}
	if notes < noteBurst || notes > noteBurst+60 {
		t.Errorf("%d notes in an hour", notes)
	}
	now = now.Add(time.Hour)
	for i := range noteBurst {
		if !r.mayNote(now) {
			t.Errorf("note %d of a region that was silent for an hour is refused", i+1)
		}
	}
}
