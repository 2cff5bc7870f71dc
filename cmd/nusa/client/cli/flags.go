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

// Day is a duration that package time does not define.
const Day = 24 * time.Hour

// durationType is the type of flags with a DurationValue. FlagError leaves the errors of these
// flags as they are, because they name the value.
const durationType = "span"

// DurationValue is the value of a flag: a duration with a unit, which may be d
// (days) or w (weeks).
type DurationValue struct {
	to    *time.Duration
	check func(time.Duration) error
}

// NewDuration returns the value of a flag that sets the duration to. check refuses durations.
// Its errors follow the value that the user typed.
func NewDuration(to *time.Duration, check func(time.Duration) error) *DurationValue {
	return &DurationValue{to: to, check: check}
}

func (s *DurationValue) String() string {
	if s.to == nil {
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
			if n, bad := strconv.ParseFloat(amount, 64); bad == nil && math.Abs(n) < 1e4 {
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
