package report

import (
	"os"
	"slices"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	ms := func(n int) []time.Duration {
		var out []time.Duration
		for i := n; i > 0; i-- { // the greatest first
			out = append(out, time.Duration(i)*time.Millisecond)
		}
		return out
	}
	for _, c := range []struct {
		of   []time.Duration
		want Quantiles
	}{
		{nil, Quantiles{}},
		{ms(1), Quantiles{P50: 1, P90: 1, P99: 1, Max: 1}},
		{ms(2), Quantiles{P50: 1, P90: 2, P99: 2, Max: 2}},
		{ms(10), Quantiles{P50: 5, P90: 9, P99: 10, Max: 10}},
		{ms(100), Quantiles{P50: 50, P90: 90, P99: 99, Max: 100}},
		{ms(1000), Quantiles{P50: 500, P90: 900, P99: 990, Max: 1000}},
		{[]time.Duration{1_234_567}, Quantiles{P50: 1.234, P90: 1.234, P99: 1.234, Max: 1.234}},
	} {
		if got := QuantilesOf(slices.Clone(c.of)); got != c.want {
			t.Errorf("%d durations: %+v, want %+v", len(c.of), got, c.want)
		}
	}
}

func TestProc(t *testing.T) {
	// The name of a process may contain blanks and parentheses.
	used, err := ParseStat([]byte("42 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 7 0 0 20 0 9"), 14)
	if err != nil || used != 1570*time.Millisecond {
		t.Errorf("CPU time %s, %v", used, err)
	}
	if _, err := ParseStat([]byte("42 (a) S 1 2"), 14); err == nil {
		t.Error("a short line is no error")
	}
	if _, err := CPUTime(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestMemory(t *testing.T) {
	for _, c := range []struct{ file, key string }{{"status", "VmRSS:"}, {"status", "VmHWM:"}, {"smaps_rollup", "Pss:"}} {
		if mb, err := Memory(os.Getpid(), c.file, c.key); err != nil || mb < 1 || mb > 10_000 {
			t.Errorf("%s %s: %g MB, %v", c.file, c.key, mb, err)
		}
	}
	if _, err := Memory(os.Getpid(), "status", "NoSuch:"); err == nil {
		t.Error("a figure that is not there is no error")
	}
}
