package term

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// ShortID returns the beginning of an id, as tables show it. Commands accept that beginning
// as a name.
func ShortID(id string) string {
	const length = 8
	return id[:min(len(id), length)]
}

// Age formats a duration for people, for example 45s, 12m, 3h20m or 5d4h.
func Age(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return Duration(d.AsDuration())
}

// Duration formats a duration for people, for example 0.3s, 45s, 12m, 3h20m or 5d4h.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return strconv.FormatFloat(math.Floor(d.Seconds()*10)/10, 'f', -1, 64) + "s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 24*time.Hour:
		return trimZero(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	}
	const day = 24 * time.Hour
	return trimZero(d/day, "d", d%day/time.Hour, "h")
}

func trimZero(a time.Duration, unit string, b time.Duration, small string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unit)
	}
	return fmt.Sprintf("%d%s%d%s", a, unit, b, small)
}

// Millis formats a round trip in milliseconds, for example 0.4, 7.2 or 68.
func Millis(d *durationpb.Duration) string {
	ms := float64(d.AsDuration()) / float64(time.Millisecond)
	if ms < 10 {
		return strconv.FormatFloat(ms, 'f', 1, 64)
	}
	return strconv.FormatFloat(ms, 'f', 0, 64)
}

// Size formats a number of bytes for people, for example 1.5 GiB.
func Size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	f, i := float64(n), 0
	for f >= 1000 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 || f >= 10 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}

// Cores formats thousandths of a core exactly. For example, 1 is "0.001" and not "0".
func Cores(milli int64) string { return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64) }

// Percent formats a share as a whole percentage.
func Percent(f float64) string { return fmt.Sprintf("%.0f%%", f*100) }

// Rate formats a number of bytes per second.
func Rate(f float64) string { return Size(int64(f)) + "/s" }

// Number formats a number with at most one decimal, or at most two if the number is below
// 10. It writes no trailing zeros.
func Number(f float64) string {
	decimals := 1
	if math.Abs(f) < 10 {
		decimals = 2
	}
	text := strconv.FormatFloat(f, 'f', decimals, 64)
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	if text == "-0" {
		return "0"
	}
	return text
}

// Count formats a whole number.
func Count[T int | int32](n T) string { return strconv.Itoa(int(n)) }

// Plural formats a number of things, for example "1 instance" or "2 instances".
func Plural[T int | int32](n T, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// YesNo returns a word for a fact.
func YesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// OrDash returns s, or "-" if s is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
