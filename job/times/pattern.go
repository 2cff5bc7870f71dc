package times

import (
	"math/bits"
	"time"
)

// pattern matches readings of the wall.
type pattern struct {
	days
	// hours and minutes match the times of a day, by bits. at does so for calendars, in seconds of the
	// day, in ascending order.
	hours, minutes uint64
	at             []int64
	// everyHour: the pattern follows the time line.
	everyHour bool
}

// days matches dates.
type days struct {
	months, monthDays, weekdays uint64 // by bits
	// fromEnd matches days of a month that are counted from its end, by bits: 1 is the last day.
	fromEnd uint64
	// nth matches one weekday of a month, in addition to weekdays.
	nth []nthDay
	// years are ranges. Empty: every year.
	years [][2]int
	// either: a day matches by its day of the month or by its weekday. Otherwise it needs both.
	either bool
}

// nthDay is the n-th weekday of a month. A negative n counts from the end of the month.
type nthDay struct {
	day time.Weekday
	n   int
}

// allBits has the bits low to high.
func allBits(low, high int) uint64 { return (1<<(high-low+1) - 1) << low }

func has(set uint64, bit int) bool { return set&(1<<bit) != 0 }

func (d *days) matchesYear(year int) bool {
	for _, r := range d.years {
		if year >= r[0] && year <= r[1] {
			return true
		}
	}
	return len(d.years) == 0
}

// match reports whether a date matches. date is in UTC.
func (d *days) match(date time.Time) bool {
	year, month, day := date.Date()
	if !has(d.months, int(month)) || !d.matchesYear(year) {
		return false
	}
	last := monthLength(year, month)
	byDay := has(d.monthDays, day) || has(d.fromEnd, last-day+1)
	weekday := date.Weekday()
	byWeekday := has(d.weekdays, int(weekday))
	for _, n := range d.nth {
		byWeekday = byWeekday || n.day == weekday && (n.n == (day-1)/7+1 || -n.n == (last-day)/7+1)
	}
	if d.either {
		return byDay || byWeekday
	}
	return byDay && byWeekday
}

func monthLength(year int, month time.Month) int {
	return time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// next returns the first matching reading from a reading on, and before another one.
func (p *pattern) next(from, before wall) (wall, bool) {
	date := time.Unix(int64(from), 0).UTC()
	second := int64(date.Hour()*3600 + date.Minute()*60 + date.Second())
	date = date.Add(-time.Duration(second) * time.Second)
	for wall(date.Unix()) < before {
		switch {
		case !p.matchesYear(date.Year()):
			date = time.Date(date.Year()+1, 1, 1, 0, 0, 0, 0, time.UTC)
		case !has(p.months, int(date.Month())):
			date = time.Date(date.Year(), date.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		default:
			if p.match(date) {
				if of, ok := p.secondFrom(second); ok {
					w := wall(date.Unix() + of)
					return w, w < before
				}
			}
			date = date.AddDate(0, 0, 1)
		}
		second = 0
	}
	return 0, false
}

// secondFrom returns the first matching second of a day from a second on.
func (p *pattern) secondFrom(second int64) (int64, bool) {
	for _, at := range p.at {
		if at >= second {
			return at, true
		}
	}
	for hour := int(second / 3600); p.hours>>hour != 0 && hour < 24; hour++ {
		if !has(p.hours, hour) {
			continue
		}
		least := int64(0)
		if left := second - int64(hour)*3600; left > 0 {
			least = (left + 59) / 60
		}
		if rest := p.minutes >> least << least; least < 60 && rest != 0 {
			return int64(hour)*3600 + int64(bits.TrailingZeros64(rest))*60, true
		}
	}
	return 0, false
}
