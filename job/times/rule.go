package times

import "time"

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
	// jumps bounds how many excluded days a search steps over.
	jumps = 20_000
)

// Next returns the first time after a time at which the rule fires. It returns false if there is none
// in the next 400 years.
func (r *Rule) Next(after time.Time) (time.Time, bool) {
	if !r.Start.IsZero() && after.Before(r.Start) {
		after = r.Start.Add(-time.Second)
	}
	for range jumps {
		t, ok := r.fires(after)
		if !ok || !r.End.IsZero() && !t.Before(r.End) {
			return time.Time{}, false
		}
		until, excluded := r.excluded(t)
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

// fires returns the first time after a time at which a part of the rule fires.
func (r *Rule) fires(after time.Time) (first time.Time, ok bool) {
	add := func(t time.Time) {
		if !ok || t.Before(first) {
			first, ok = t, true
		}
	}
	if r.Every > 0 {
		add(r.interval(after))
	}
	limit := after.AddDate(horizon, 0, 1)
	for i := range r.Patterns {
		find := r.Patterns[i].first
		if r.Patterns[i].pattern.everyHour {
			find = r.Patterns[i].firstOfEveryHour
		}
		if t, some := find(after, limit, r.Zone); some {
			add(t)
			limit = t
		}
	}
	return first, ok
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

// excluded reports whether a time is excluded, and the next time that this exclusion allows. A zero
// time means that it allows none.
func (r *Rule) excluded(t time.Time) (until time.Time, yes bool) {
	for _, e := range r.Exclude {
		if t.Before(e.From) || !e.Until.IsZero() && !t.Before(e.Until) {
			continue
		}
		if e.Days == nil {
			return e.Until, true
		}
		year, month, day := t.In(r.Zone).Date()
		if date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC); e.Days.days.match(date) {
			next := reach(wall(date.Unix()+daySeconds), r.Zone)
			if !next.After(t) { // the clock was turned back over midnight
				next = t.Add(time.Hour)
			}
			return next, true
		}
	}
	return time.Time{}, false
}
