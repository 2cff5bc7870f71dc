package sched

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// moment formats a point in time, for example "2026-03-01 17:04 UTC". It leaves out the day
// if the day is the same as that of after. after is 0 for none.
func moment(unixNano, after int64) string {
	at, other := time.Unix(0, unixNano).UTC(), time.Unix(0, after).UTC()
	if at.Truncate(24*time.Hour).Equal(other.Truncate(24*time.Hour)) && after > 0 {
		return at.Format("15:04 UTC")
	}
	return at.Format("2006-01-02 15:04 UTC")
}

// plural returns, for example, "1 node" or "2 nodes".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// milli formats thousandths, for example "500m" or "2".
func milli(n int64) string {
	if n%1000 == 0 {
		return strconv.FormatInt(n/1000, 10)
	}
	return strconv.FormatInt(n, 10) + "m"
}

// size formats bytes in binary units with at most one decimal.
func size(n int64) string {
	f, unit := scaled(n)
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0") + unit
}

// sizeBelow is like size, but rounds down.
func sizeBelow(n int64) string {
	f, unit := scaled(n)
	return strings.TrimSuffix(strconv.FormatFloat(math.Floor(f*10)/10, 'f', 1, 64), ".0") + unit
}

func scaled(n int64) (float64, string) {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for ; (f >= 1024 || f <= -1024) && i < len(units)-1; i++ {
		f /= 1024
	}
	return f, units[i]
}
