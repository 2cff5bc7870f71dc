package times

import (
	"slices"
	"time"
)

// Rule says when a schedule fires. It fires at each time at which one of its parts does.
type Rule struct {
	// Zone is the time zone of the patterns. It must be set.
	Zone *time.Location
	// Patterns are the cron expressions and the calendars.
	Patterns []Pattern
	// Every is an interval; 0: there is none. It is counted from Start, or without Start from
	// 1970-01-01T00:00:00Z.
	Every time.Duration
	// Start is the first time that may fire, and End the first time that may not. Zero: no limit.
	Start, End time.Time
	// Exclude are times that do not fire.
	Exclude []Exclusion
}

// Exclusion is a set of times that do not fire: those of some days, and between two times.
type Exclusion struct {
	// From is the first excluded time, and Until the first one that is not. Zero: no limit.
	From, Until time.Time
	// Days are the excluded days. Nil: all days.
	Days *Days
}

const (
	// horizon bounds the search for the next time. Dates and weekdays repeat after 400 years.
	horizon = 400
	// work bounds the search over excluded days: one for each day that it steps over, and perJump for each time
	// that it finds and that is excluded. So it takes less than a second, whatever the rule.
	work, perJump = 20_000, 8
)

// windows are the parts of the time line in which patterns are searched one after another, in days. So a pattern
// that fires rarely is not searched far beyond the next time of another one.
var windows = [...]int{1, 32, 366, horizon*366 + 1}

// Next returns the first time after a time at which the rule fires. It returns false if there is none
// in the next 400 years, or none after 50 years of excluded days.
func (r *Rule) Next(after time.Time) (time.Time, bool) {
	s := search{rule: r, parts: make([]part, len(r.Patterns))}
	return s.next(after)
}

func (s *search) next(after time.Time) (time.Time, bool) {
	r := s.rule
	if !r.Start.IsZero() && after.Before(r.Start) {
		after = r.Start.Add(-time.Second)
	}
	for left := work; left > 0; {
		t, ok := s.fires(after)
		if !ok || !r.End.IsZero() && !t.Before(r.End) {
			return time.Time{}, false
		}
		until, days, excluded := r.excluded(t)
		left -= days + perJump
		if !excluded {
			return t.UTC(), true
		}
		if until.IsZero() {
			return time.Time{}, false
		}
		after = until.Add(-time.Second)
	}
	return time.Time{}, false
}

// search has what one call of Next has found.
type search struct {
	rule  *Rule
	parts []part // by pattern
	// looks counts searches of patterns.
	looks int
}

// part is what is known of a pattern: it does not fire before `at` after the times that were asked for. fires: it
// does at that time.
type part struct {
	at    time.Time
	fires bool
}

// fires returns the first time after a time at which a part of the rule fires. The time must not be earlier than
// in the former call.
func (s *search) fires(after time.Time) (first time.Time, ok bool) {
	r := s.rule
	for _, days := range windows {
		end := after.AddDate(0, 0, days)
		limit := end
		add := func(t time.Time) {
			if !ok || t.Before(first) {
				first, ok = t, true
			}
			if t.Before(limit) {
				limit = t
			}
		}
		if r.Every > 0 {
			add(r.interval(after))
		}
		for i := range s.parts {
			if p := &s.parts[i]; p.fires && p.at.After(after) {
				add(p.at)
			}
		}
		for i := range s.parts {
			p := &s.parts[i]
			if p.at.Before(limit) || p.fires && !p.at.After(after) {
				s.looks++
				*p = r.Patterns[i].part(after, limit, r.Zone)
			}
			if p.fires {
				add(p.at)
			}
		}
		if ok && !first.After(end) { // beyond the end, not all patterns were searched
			return first, true
		}
	}
	return first, ok
}

// part returns the first time after a time at which the pattern fires, if it is before a limit.
func (p *Pattern) part(after, limit time.Time, zone *time.Location) part {
	find := p.first
	if p.pattern.everyHour {
		find = p.firstOfEveryHour
	}
	if t, some := find(after, limit, zone); some {
		return part{t, true}
	}
	return part{limit, false}
}

func (r *Rule) interval(after time.Time) time.Time {
	from := r.Start
	if from.IsZero() {
		from = time.Unix(0, 0)
	}
	if after.Before(from) {
		return from
	}
	// In whole seconds, because a time.Duration has only 292 years.
	every := int64(r.Every / time.Second)
	passed := (after.Unix() - from.Unix()) / every
	t := time.Unix(from.Unix()+passed*every, 0)
	for !t.After(after) {
		t = t.Add(r.Every)
	}
	return t
}

// first returns the first time after a time at which the wall reaches a matching reading that it has
// not shown before.
func (p *Pattern) first(after, limit time.Time, zone *time.Location) (time.Time, bool) {
	w, ok := p.pattern.next(unseen(after, zone), wall(limit.Add(farthest).Unix()))
	if !ok {
		return time.Time{}, false
	}
	return reach(w, zone), true
}

// firstOfEveryHour returns the first time after a time at which the wall shows a matching reading.
func (p *Pattern) firstOfEveryHour(after, limit time.Time, zone *time.Location) (time.Time, bool) {
	from := time.Unix(after.Unix()+1, 0)
	for s := spanAt(from, zone); ; s = s.next(zone) {
		until := limit
		if !s.end.IsZero() && s.end.Before(limit) {
			until = s.end
		}
		if from.Before(s.start) {
			from = s.start
		}
		if w, ok := p.pattern.next(s.show(from), s.show(until)); ok {
			return s.at(w), true
		}
		if s.end.IsZero() || !s.end.Before(limit) {
			return time.Time{}, false
		}
	}
}

// excluded reports whether a time is excluded, and the next time that is not by the same exclusion, or by one of
// the same days for ever. A zero time means that there is none. days is how many days lie between.
func (r *Rule) excluded(t time.Time) (until time.Time, days int, yes bool) {
	for _, e := range r.Exclude {
		if t.Before(e.From) || !e.Until.IsZero() && !t.Before(e.Until) {
			continue
		}
		if e.Days == nil {
			return e.Until, 0, true
		}
		date, until := dateOf(t, r.Zone), dateOf(e.Until, r.Zone)
		for days < work && (e.Days.days.match(date) || days > 0 && r.never(date)) {
			date, days = date.AddDate(0, 0, 1), days+1
			if !e.Until.IsZero() && date.After(until) {
				break
			}
		}
		if days == 0 {
			continue
		}
		next := reach(wall(date.Unix()), r.Zone)
		if !e.Until.IsZero() && next.After(e.Until) {
			next = e.Until
		}
		if !next.After(t) { // the clock was turned back over midnight
			next = t.Add(time.Hour)
		}
		return next, days, true
	}
	return time.Time{}, 0, false
}

// dateOf returns the date of a time in a zone, as a time in UTC.
func dateOf(t time.Time, zone *time.Location) time.Time {
	year, month, day := t.In(zone).Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// never reports whether a date is excluded for ever.
func (r *Rule) never(date time.Time) bool {
	return slices.ContainsFunc(r.Exclude, func(e Exclusion) bool {
		return e.Days != nil && e.From.IsZero() && e.Until.IsZero() && e.Days.days.match(date)
	})
}
