package config

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Ulimits are the names of the limits of a process, as in ulimit and limits.conf.
var Ulimits = []string{"as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "stack"}

// ParseUlimit reads a limit: a number, "unlimited", or two of these as "soft:hard". The soft limit is not
// greater than the hard limit. "unlimited" is math.MaxUint64.
func ParseUlimit(v any) (soft, hard uint64, err error) {
	one := func(s string) uint64 {
		if s == "unlimited" {
			return math.MaxUint64
		}
		n, e := strconv.ParseUint(s, 10, 63)
		err = errors.Join(err, e)
		return n
	}
	switch v := v.(type) {
	case float64:
		if v < 0 || v != math.Trunc(v) || v >= 1<<53 {
			break
		}
		return uint64(v), uint64(v), nil
	case string:
		s, h, two := strings.Cut(v, ":")
		if !two {
			h = s
		}
		soft, hard = one(s), one(h)
		if err == nil && soft <= hard {
			return soft, hard, nil
		}
	}
	return 0, 0, errors.New(`must be a whole number, unlimited, or two of these as "soft:hard"`)
}

// checkUlimits checks a map of limits.
func checkUlimits(v any, at string, fail Report) {
	known := make(Schema, len(Ulimits))
	for i, name := range Ulimits {
		known[i].Name = name
	}
	m := v.(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		at := at + "." + k
		if !slices.Contains(Ulimits, k) {
			fail(at, "unknown field"+known.hint(k))
			continue
		}
		if _, _, err := ParseUlimit(m[k]); err != nil {
			fail(at, err.Error())
		}
	}
}
