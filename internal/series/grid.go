package series

import "time"

// Base is the distance of two measurements. Times are counted in slots of this
// length since 1970.
const Base = 5 * time.Second

// level is one resolution. Windows of step slots are stored in segments of so
// many points, which lie on multiples of their span, and are kept for keep
// slots.
type level struct {
	step   int64
	points int
	keep   int64
}

func (l level) span() int64 { return l.step * int64(l.points) }

// A finer segment is a whole number of windows of the next level, so that it
// never takes part of a window to make one.
var levels = [...]level{
	{step: 1, points: 12, keep: 720},           // 5 s for an hour, a minute each
	{step: 12, points: 60, keep: 17_280},       // 1 min for a day, an hour each
	{step: 120, points: 36, keep: 31 * 17_280}, // 10 min for 31 days, six hours each
}

const coarsest = len(levels) - 1

// covered is the oldest slot that a level still holds for sure: segments go
// when they are wholly older.
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

// nextSlot is the slot of a measurement at now, when the one before was at
// last and took lastSlot. A caller's tick of 5 s that jitters about the edge of
// a slot would hit some twice and leave others out; so a tick takes as many
// slots after the last as it took time, as long as that is within one of the
// slot that the clock says.
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

// plan is what a query reads: windows [from, to) of step slots each, out of the
// level.
type plan struct {
	level          int
	from, to, step int64
}

func (p plan) points() int { return int((p.to - p.from) / p.step) }

// planQuery chooses the finest level that still covers from, and the smallest
// step that is a multiple of the level's, at least the one asked for, and
// answers with at most most points. A step of 0 asks for at most few. Times
// that nothing can be known of are cut off.
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
		// One window more than the range has whole ones may be touched.
		p.step = ceilTo((wide+int64(most)-2)/int64(most-1), unit)
	}
	p.from, p.to = floorTo(p.from, p.step), ceilTo(p.to, p.step)
	if to <= from {
		p.to = p.from
	}
	return p
}
