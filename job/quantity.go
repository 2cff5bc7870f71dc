package job

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
)

// byteUnits are the suffixes of sizes. M means MiB, because M, Mi and MiB in one file must
// not differ. No author intends the difference of five per cent between MB and MiB.
var byteUnits = map[string]int64{
	"": 1, "B": 1,
	"K": 1 << 10, "k": 1 << 10, "Ki": 1 << 10, "KiB": 1 << 10,
	"M": 1 << 20, "Mi": 1 << 20, "MiB": 1 << 20,
	"G": 1 << 30, "Gi": 1 << 30, "GiB": 1 << 30,
	"T": 1 << 40, "Ti": 1 << 40, "TiB": 1 << 40,
	"P": 1 << 50, "Pi": 1 << 50, "PiB": 1 << 50,
}

var number = lazyregexp.New(`^(-?[0-9]{1,18}(?:\.[0-9]{1,9})?(?:[eE][+-]?[0-9]{1,2})?) ?([A-Za-zµ%]*)$`)

// amount splits "1.5GiB" into 1.5 and "GiB".
func amount(s string) (*big.Rat, string, error) {
	m := number().FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return nil, "", fmt.Errorf("%q is not a quantity", clip(s))
	}
	r, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return nil, "", fmt.Errorf("%q is not a quantity", clip(s))
	}
	return r, m[2], nil
}

// ParseBytes reads a size such as 256MiB, 256Mi, 256M, 1.5GiB or plain bytes.
func ParseBytes(s string) (int64, error) {
	r, suffix, err := amount(s)
	if err != nil {
		return 0, fmt.Errorf("%w of bytes such as 256MiB", err)
	}
	unit, ok := byteUnits[suffix]
	if !ok {
		return 0, fmt.Errorf("unknown unit %q: one of B, KiB, MiB, GiB, TiB", suffix)
	}
	return whole(r.Mul(r, new(big.Rat).SetInt64(unit)), s, "byte")
}

// ParseCPU reads cores such as 500m, 0.5 or 2 into thousandths of a core.
func ParseCPU(s string) (int64, error) {
	r, suffix, err := amount(s)
	if err != nil {
		return 0, fmt.Errorf("%w of cores such as 500m or 2", err)
	}
	switch suffix {
	case "m":
	case "":
		r.Mul(r, new(big.Rat).SetInt64(1000))
	default:
		return 0, fmt.Errorf("unknown unit %q: write 500m for half a core, or 2 for two", suffix)
	}
	return whole(r, s, "thousandth (1m)")
}

func whole(r *big.Rat, s, what string) (int64, error) {
	switch {
	case r.Sign() < 0:
		return 0, fmt.Errorf("%s is negative", clip(s))
	case !r.IsInt():
		return 0, fmt.Errorf("%s is not a whole number of the smallest unit, a %s", clip(s), what)
	case !r.Num().IsInt64():
		return 0, fmt.Errorf("%s is too large", clip(s))
	}
	return r.Num().Int64(), nil
}

// ErrUnit means that a quantity has no such unit.
var ErrUnit = errors.New("unknown unit")

// durationUnits are the units of time.ParseDuration.
var durationUnits = []string{"ns", "us", "µs", "μs", "ms", "s", "m", "h"}

// ParseDuration reads a duration such as 30s, 1h30m or 250ms.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(s))
	switch {
	case err == nil && d < 0:
		return 0, fmt.Errorf("%s is negative", clip(s))
	case err == nil:
		return d, nil
	}
	r, suffix, aerr := amount(s)
	switch {
	case aerr == nil && suffix == "" && r.Sign() < 0:
		return 0, fmt.Errorf("%s is negative", clip(s))
	case aerr == nil && suffix == "":
		return 0, fmt.Errorf("%s has no unit: write %ss, %sms, %sm or %sh", s, s, s, s, s)
	case aerr == nil && !slices.Contains(durationUnits, suffix):
		return 0, fmt.Errorf("%w %q: one of ns, us, ms, s, m, h", ErrUnit, suffix)
	}
	return 0, fmt.Errorf("%q is not a duration such as 30s, 10m or 24h", clip(s))
}

// FormatBytes formats a size as a whole number with the greatest possible unit.
func FormatBytes(n int64) string {
	for _, u := range []string{"PiB", "TiB", "GiB", "MiB", "KiB"} {
		if unit := byteUnits[u]; n != 0 && n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + u
		}
	}
	return strconv.FormatInt(n, 10)
}

// FormatCPU formats thousandths of a core, for example 500m, or 2 for whole cores.
func FormatCPU(milli int64) string {
	if milli%1000 == 0 {
		return strconv.FormatInt(milli/1000, 10)
	}
	return strconv.FormatInt(milli, 10) + "m"
}

// FormatDuration formats a duration without zero parts at the end, for example 24h or
// 1m30s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// goDuration converts a duration. It returns false if the message is invalid or the
// duration is longer than 292 years.
func goDuration(d *durationpb.Duration) (time.Duration, bool) {
	const most = math.MaxInt64/int64(time.Second) - 1
	if d.CheckValid() != nil || d.GetSeconds() > most || d.GetSeconds() < -most {
		return 0, false
	}
	return d.AsDuration(), true
}

// clip shortens a part of the input for an error message.
func clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
