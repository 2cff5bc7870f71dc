package series

import "time"

// Base is the time between two measurements. Times are counted in slots of Base since
// 1970.
const Base = 5 * time.Second

// level is one resolution. A window of the level has step slots. A segment has points
// windows, and begins at a multiple of its span. Segments are retained for keep slots.
type level struct {
	step   int64
	points int
	keep   int64
}

func (l level) span() int64 { return l.step * int64(l.points) }

// levels are the resolutions, finest first. A segment covers a whole number of windows of
// the next level, so a window is never made of parts of two segments.
var levels = [...]level{
	{step: 1, points: 12, keep: 720},           // 5 s for an hour, in segments of a minute
	{step: 12, points: 60, keep: 17_280},       // 1 min for a day, in segments of an hour
	{step: 120, points: 36, keep: 31 * 17_280}, // 10 min for 31 days, in segments of six hours
}

const coarsest = len(levels) - 1

// covered returns the oldest slot that a level certainly has. A segment is removed when
// its last slot is older.
func (l level) covered(now int64) int64 { return now - l.keep - l.span() }

func floorTo(slot, step int64) int64 {
	if r := slot % step; r < 0 {
		return slot - r - step
	} else {
		return slot - r
	}
}

func ceilTo(slot, step int64) int64 { return floorTo(slot+step-1, step) }

func slotAt(t time.Time) int64    { return floorTo(t.UnixNano(), int64(Base)) / int64(Base) }
func timeOf(slot int64) time.Time { return time.Unix(0, slot*int64(Base)).UTC() }

// nextSlot returns the slot of a measurement at now. The previous measurement was at last
// and had lastSlot. A 5 s tick that jitters around the edge of a slot would hit some slots
// twice and miss others. So a measurement gets lastSlot plus the elapsed slots, if the sum
// differs from the clock's slot by at most one.
func nextSlot(now, last time.Time, lastSlot int64) int64 {
	slot := slotAt(now)
	if last.IsZero() {
		return slot
	}
	elapsed := now.Sub(last)
	expected := lastSlot + int64((elapsed+Base/2)/Base)
	if elapsed < 0 || expected < slot-1 || expected > slot+1 {
		return slot
	}
	return expected
}

// plan says what a query reads: the windows of step slots between from (inclusive) and to
// (exclusive), made from the data of a level.
type plan struct {
	level          int
	from, to, step int64
}

func (p plan) points() int { return int((p.to - p.from) / p.step) }

// planQuery chooses the finest level that still covers from. Then it chooses the smallest
// step that is a multiple of the level's step, is not less than the requested step, and
// gives at most most points. A requested step of 0 gives at most few points. Times without
// data are cut off.
func planQuery(now, from, to, step int64, few, most int) plan {
	from = max(from, levels[coarsest].covered(now))
	to = min(to, now+1)
	p := plan{level: coarsest, from: from, to: max(from, to)}
	for i, l := range levels {
		if from >= l.covered(now) {
			p.level = i
			break
		}
	}
	if step <= 0 {
		most = min(most, few)
	}
	step = min(step, levels[coarsest].keep)
	unit := levels[p.level].step
	p.step = max(ceilTo(step, unit), unit)
	if wide := p.to - p.from; wide > p.step*int64(most-1) {
		// A range can overlap one window more than the number of whole windows that it
		// holds.
		p.step = ceilTo((wide+int64(most)-2)/int64(most-1), unit)
	}
	p.from, p.to = floorTo(p.from, p.step), ceilTo(p.to, p.step)
	if to <= from {
		p.to = p.from
	}
	return p
}
