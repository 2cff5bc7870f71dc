package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/job"
)

// Day is a day, for which package time has no constant.
const Day = 24 * time.Hour

// CheckTimeout returns an error for a --timeout that leaves no time.
func CheckTimeout(d time.Duration) error {
	if d > 0 {
		return nil
	}
	return fmt.Errorf("--timeout: %s is not more than 0", d)
}

// durationType is the type of flags with a DurationValue. The errors of such a flag already
// name the value, so FlagError does not add the value.
const durationType = "span"

// DurationValue is the value of a duration flag. Besides the units of package job it
// accepts d (days) and w (weeks).
type DurationValue struct {
	to    *time.Duration
	check func(time.Duration) error
}

// NewDuration returns the value of a flag that sets the duration to. check returns an error
// for a duration that is not allowed. The text of that error follows the value that the
// user typed.
func NewDuration(to *time.Duration, check func(time.Duration) error) *DurationValue {
	return &DurationValue{to: to, check: check}
}

func (s *DurationValue) String() string {
	if s.to == nil || *s.to == 0 { // without a default, help shows none
		return ""
	}
	return job.FormatDuration(*s.to)
}

func (s *DurationValue) Type() string { return durationType }

// Set implements pflag.Value.
func (s *DurationValue) Set(text string) error {
	d, err := job.ParseDuration(text)
	for unit, long := range map[string]time.Duration{"d": Day, "w": 7 * Day} {
		if amount, ok := strings.CutSuffix(text, unit); ok {
			n, bad := strconv.ParseFloat(amount, 64)
			switch {
			case math.Abs(n)*float64(long) >= math.MaxInt64:
				return fmt.Errorf("%.40s is too long: at most %d%s", text, math.MaxInt64/long, unit)
			case bad == nil && !math.IsNaN(n):
				d, err = time.Duration(n*float64(long)), nil
			}
		}
	}
	if errors.Is(err, job.ErrUnit) {
		return fmt.Errorf("%w, d, w", err)
	}
	if err != nil {
		return err
	}
	if err := s.check(d); err != nil {
		return fmt.Errorf("%s %w", text, err)
	}
	*s.to = d
	return nil
}
