package times

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Pattern is a cron expression or a calendar.
type Pattern struct{ pattern pattern }

// Days is a set of dates.
type Days struct{ days days }

// Bounds of texts.
const (
	maxText  = 256
	maxTimes = 48
)

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// star is the bit that the parser sets for a field that is not restricted.
const star = 1 << 63

// ParseCron reads a cron expression with five fields: minute, hour, day of the month, month, weekday.
// It also reads @hourly, @daily, @weekly, @monthly and @yearly.
func ParseCron(text string) (Pattern, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return Pattern{}, errors.New("is empty: write minute, hour, day of the month, month and weekday, such as 30 2 * * mon-fri")
	case len(text) > maxText:
		return Pattern{}, fmt.Errorf("has %d bytes, the limit is %d", len(text), maxText)
	case strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ="):
		return Pattern{}, errors.New("has a time zone: write it into time_zone")
	case strings.HasPrefix(text, "@every"):
		return Pattern{}, errors.New("is an interval: write it into every, such as every: 90m")
	}
	parsed, err := parser.Parse(text)
	if err != nil {
		return Pattern{}, errors.New(strings.ReplaceAll(err.Error(), "expected exactly 5 fields", "must have 5 fields (minute, hour, day of the month, month, weekday)"))
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return Pattern{}, errors.New("is not a cron expression")
	}
	const every = 1<<24 - 1
	return Pattern{pattern{
		hours: spec.Hour &^ star, minutes: spec.Minute &^ star, everyHour: spec.Hour&every == every,
		days: days{
			months: spec.Month &^ star, monthDays: spec.Dom &^ star, weekdays: spec.Dow &^ star,
			either: spec.Dom&star == 0 && spec.Dow&star == 0,
		},
	}}, nil
}

// DaysText has the texts that describe dates. A date must match all of them. "" matches every date.
type DaysText struct {
	// Years is a list such as 2026-2028,2030.
	Years string
	// Months is a list such as jan,apr-jun,12.
	Months string
	// Days is a list of days of the month such as 1,10-15,-1. A negative day counts from the end.
	Days string
	// Weekdays is a list such as mon-fri,sat#1,sun#-1. sat#1 is the first Saturday of the month.
	Weekdays string
}

var (
	monthNames   = []string{"", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
	weekdayNames = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}
)

// ParseDays reads a set of dates. The error begins with the name of the field.
func ParseDays(text DaysText) (Days, error) {
	d := days{months: allBits(1, 12), monthDays: allBits(1, 31), weekdays: allBits(0, 6)}
	for _, f := range []struct {
		name, text string
		read       func(string) error
		reset      func()
	}{
		{"years", text.Years, d.readYears, func() {}},
		{"months", text.Months, d.readMonths, func() { d.months = 0 }},
		{"days", text.Days, d.readDays, func() { d.monthDays = 0 }},
		{"weekdays", text.Weekdays, d.readWeekdays, func() { d.weekdays = 0 }},
	} {
		if len(f.text) > maxText {
			return Days{}, fmt.Errorf("%s has %d bytes, the limit is %d", f.name, len(f.text), maxText)
		}
		if f.text == "" {
			continue
		}
		f.reset()
		for _, part := range strings.Split(f.text, ",") {
			if err := f.read(strings.ToLower(strings.TrimSpace(part))); err != nil {
				return Days{}, fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return Days{d}, nil
}

// ParseCalendar reads a calendar: the times of a day, as HH:MM or HH:MM:SS, on some dates. The error
// begins with the name of the field.
func ParseCalendar(dates DaysText, at []string) (Pattern, error) {
	d, err := ParseDays(dates)
	if err != nil {
		return Pattern{}, err
	}
	switch {
	case len(at) == 0:
		return Pattern{}, errors.New("at: is missing: give times of the day, such as [09:00, 17:30]")
	case len(at) > maxTimes:
		return Pattern{}, fmt.Errorf("at: %d times, the limit is %d", len(at), maxTimes)
	}
	p := pattern{days: d.days}
	for _, text := range at {
		t, err := time.Parse("15:04:05", text)
		if err != nil {
			t, err = time.Parse("15:04", text)
		}
		if err != nil {
			return Pattern{}, fmt.Errorf("at: %q is not a time of the day such as 09:00 or 17:30:15", clip(text))
		}
		p.at = append(p.at, int64(t.Hour()*3600+t.Minute()*60+t.Second()))
	}
	slices.Sort(p.at)
	return Pattern{p}, nil
}

// ParseMoment reads a date or a time: 2026-12-24, 2026-12-24T18:00, 2026-12-24T18:00:30, all three in a
// zone, or RFC 3339 with an offset. date: the text has only a date.
func ParseMoment(text string, zone *time.Location) (at time.Time, date bool, err error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.Truncate(time.Second), false, nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return reach(wall(t.Unix()), zone), layout == time.DateOnly, nil
		}
	}
	return time.Time{}, false, fmt.Errorf("%q is not a date or a time such as 2026-12-24, 2026-12-24T18:00 or 2026-12-24T18:00:00+01:00", clip(text))
}

// NextDay returns the first time of the day after a time's day.
func NextDay(t time.Time, zone *time.Location) time.Time {
	year, month, day := t.In(zone).Date()
	return reach(wall(time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC).Unix()), zone)
}

func (d *days) readYears(part string) error {
	low, high, err := numbers(part, nil, 1970, 2399)
	if err != nil {
		return err
	}
	if len(d.years) == 16 {
		return errors.New("more than 16 ranges")
	}
	d.years = append(d.years, [2]int{low, high})
	return nil
}

func (d *days) readMonths(part string) error {
	low, high, err := numbers(part, monthNames, 1, 12)
	if err == nil {
		d.months |= allBits(low, high)
	}
	return err
}

func (d *days) readDays(part string) error {
	if n, err := strconv.Atoi(part); err == nil && n < 0 {
		if n < -31 {
			return fmt.Errorf("%d is not within -31..-1", n)
		}
		d.fromEnd |= 1 << -n
		return nil
	}
	low, high, err := numbers(part, nil, 1, 31)
	if err == nil {
		d.monthDays |= allBits(low, high)
	}
	return err
}

func (d *days) readWeekdays(part string) error {
	name, nth, some := strings.Cut(part, "#")
	if !some {
		low, high, err := numbers(part, weekdayNames, 0, 6)
		if err == nil {
			d.weekdays |= allBits(low, high)
		}
		return err
	}
	day := slices.Index(weekdayNames, name)
	n, err := strconv.Atoi(nth)
	if day < 0 || err != nil || n == 0 || n < -5 || n > 5 {
		return fmt.Errorf("%q is not a weekday of a month such as mon#1 (the first Monday) or fri#-1 (the last Friday)", clip(part))
	}
	if len(d.nth) == 35 {
		return errors.New("more than 35 weekdays of a month")
	}
	d.nth = append(d.nth, nthDay{time.Weekday(day), n})
	return nil
}

// numbers reads a number or a range. names are other forms of the numbers.
func numbers(part string, names []string, low, high int) (from, to int, err error) {
	first, last, ranged := strings.Cut(part, "-")
	if !ranged {
		last = first
	}
	value := func(s string) (int, error) {
		if i := slices.Index(names, s); i >= low && s != "" {
			return i, nil
		}
		n, err := strconv.Atoi(s)
		switch {
		case err != nil && names != nil:
			return 0, fmt.Errorf("%q is not one of %s", clip(s), strings.Join(names[low:], ", "))
		case err != nil:
			return 0, fmt.Errorf("%q is not a number", clip(s))
		case n < low || n > high:
			return 0, fmt.Errorf("%d is not within %d..%d", n, low, high)
		}
		return n, nil
	}
	if from, err = value(first); err != nil {
		return 0, 0, err
	}
	if to, err = value(last); err != nil {
		return 0, 0, err
	}
	if from > to {
		return 0, 0, fmt.Errorf("%s runs backwards", clip(part))
	}
	return from, to, nil
}

// clip shortens a text for a message.
func clip(s string) string {
	const most = 40
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
