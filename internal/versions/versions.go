package versions

import (
	"errors"
	"regexp"
	"strconv"
	"time"
)

const (
	// Most is the number of earlier versions of a job that are stored without a tag, and Tagged the
	// number of those that are stored only because of their tag.
	Most, Tagged = 30, 16
	// Age is how long a version without a tag is stored after its replacement.
	Age = 90 * 24 * time.Hour
	// Overhead is the number of bytes that count for a stored version beside its spec.
	Overhead = 160
	// MaxBytes is the greatest size of a stored spec, compressed. The transaction of a submit also has
	// the new spec, and etcd limits its size.
	MaxBytes = 384 << 10
)

// Version is an earlier version of a job.
type Version struct {
	Number   int64
	Tag      string
	Replaced time.Time
	// Bytes is what the version counts in Within.
	Bytes int
}

// Keep returns the positions of the versions that stay stored. all are sorted by number, ascending. The
// latest Most versions stay until they are too old. After that, the latest Tagged versions with a tag
// stay.
func Keep(all []Version, now time.Time) (kept []int) {
	stays := make([]bool, len(all))
	most, tagged := Most, Tagged
	for i := len(all) - 1; i >= 0; i-- {
		switch {
		case most > 0 && now.Sub(all[i].Replaced) < Age:
			stays[i] = true
			most--
		case all[i].Tag != "" && tagged > 0:
			stays[i] = true
			tagged--
		}
	}
	for i, s := range stays {
		if s {
			kept = append(kept, i)
		}
	}
	return kept
}

// Within returns the positions of the versions that stay, so that they have at most limit bytes together.
// all are sorted by number, ascending. The latest version always stays. The oldest go first, those
// without a tag before the others.
func Within(all []Version, limit int) (kept []int) {
	goes := make([]bool, len(all))
	bytes := 0
	for i := range all {
		bytes += all[i].Bytes
	}
	for _, tagged := range []bool{false, true} {
		for i := 0; i+1 < len(all) && bytes > limit; i++ {
			if (all[i].Tag != "") == tagged {
				goes[i] = true
				bytes -= all[i].Bytes
			}
		}
	}
	for i, gone := range goes {
		if !gone {
			kept = append(kept, i)
		}
	}
	return kept
}

// Find returns the position of a version, by its number or its tag, or -1.
func Find(all []Version, name string) int {
	number, err := strconv.ParseInt(name, 10, 64)
	for i := range all {
		if err == nil && all[i].Number == number || all[i].Tag == name && name != "" {
			return i
		}
	}
	return -1
}

var tag = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ErrTag says that a text cannot be a tag.
var ErrTag = errors.New("must be 1..63 of [a-z0-9._-], start with a letter or a digit, and not be a number")

// CheckTag returns an error if a text cannot be a tag. A number could be mistaken for a version.
func CheckTag(text string) error {
	if _, err := strconv.ParseInt(text, 10, 64); err == nil || !tag.MatchString(text) {
		return ErrTag
	}
	return nil
}
