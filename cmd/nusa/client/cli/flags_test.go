package cli

import (
	"strings"
	"testing"
	"time"
)

// TestDurationsOfDays: days and weeks are accepted up to the longest time.Duration, and an overflow
// is called by its name.
func TestDurationsOfDays(t *testing.T) {
	for text, want := range map[string]struct {
		d   time.Duration
		err string
	}{
		"36h": {36 * time.Hour, ""}, "1.5d": {36 * time.Hour, ""}, "2w": {14 * Day, ""}, "10000d": {10000 * Day, ""}, "106751d": {106751 * Day, ""},
		"106752d": {0, "106752d is too long: at most 106751d"}, "1e999d": {0, "is too long"}, "infd": {0, "is too long"},
		"16000w": {0, "16000w is too long: at most 15250w"}, "nand": {0, "not a duration"}, "5y": {0, `one of ns, us, ms, s, m, h, d, w`},
	} {
		var got time.Duration
		err := NewDuration(&got, func(time.Duration) error { return nil }).Set(text)
		if got != want.d || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%s: %s, %v; want %s, %q", text, got, err, want.d, want.err)
		}
	}
}
