package times

import "time"

// wall is a reading of the clock on the wall, in seconds since 1970-01-01T00:00:00 on the same wall.
type wall int64

const (
	daySeconds = 24 * 60 * 60
	// farthest is more than any zone's distance from UTC.
	farthest = 16 * time.Hour
	// turned is more than the time after a change of the clock in which the wall may show earlier
	// readings than before the change.
	turned = 50 * time.Hour
)

// span is a part of the time line in which a zone's distance from UTC is the same. A zero end means
// that the span has no end.
type span struct {
	start, end time.Time
	offset     int64
}

// spanAt returns a span that contains a time. It may be a part of a longer one.
func spanAt(t time.Time, zone *time.Location) span {
	in := t.In(zone)
	_, offset := in.Zone()
	start, end := in.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		// On 31 December of a leap year after 2037 Go returns the day before as the end.
		end = lastWith(offset, t, t.Add(daySeconds*time.Second), zone)
	}
	return span{start, end, int64(offset)}
}

// lastWith returns the end of the time after t in which the zone has an offset, at most `until`. The
// offset changes at most once before.
func lastWith(offset int, t, until time.Time, zone *time.Location) time.Time {
	if _, at := until.In(zone).Zone(); at == offset {
		return until
	}
	for until.Sub(t) > time.Second {
		middle := time.Unix((t.Unix()+until.Unix())/2, 0)
		if _, at := middle.In(zone).Zone(); at == offset {
			t = middle
		} else {
			until = middle
		}
	}
	return until
}

// next returns the following span.
func (s span) next(zone *time.Location) span { return spanAt(s.end, zone) }

// show returns what the wall shows at a time of the span.
func (s span) show(t time.Time) wall { return wall(t.Unix() + s.offset) }

// at returns when the wall shows w in this span, which may be outside of the span.
func (s span) at(w wall) time.Time { return time.Unix(int64(w)-s.offset, 0) }

// reach returns the first time at which the wall shows w or a later reading.
func reach(w wall, zone *time.Location) time.Time {
	s := spanAt(time.Unix(int64(w), 0).Add(-farthest), zone)
	for {
		t := s.at(w)
		switch {
		case t.Before(s.start):
			return s.start
		case s.end.IsZero() || t.Before(s.end):
			return t
		}
		s = s.next(zone)
	}
}

// unseen returns the first reading that the wall has not shown up to a time, that second included.
func unseen(upTo time.Time, zone *time.Location) wall {
	second := time.Unix(upTo.Unix(), 0)
	s := spanAt(second.Add(-turned), zone)
	var out wall
	for {
		until := second.Add(time.Second)
		if !s.end.IsZero() && !s.end.After(second) {
			out = max(out, s.show(s.end))
			s = s.next(zone)
			continue
		}
		return max(out, s.show(until))
	}
}
