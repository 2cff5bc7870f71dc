package series

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestWindowsOfLevelsNest: the levels nest, on which the rest of the package relies.
func TestWindowsOfLevelsNest(t *testing.T) {
	for i, l := range levels {
		if i > 0 && (l.step%levels[i-1].step != 0 || levels[i-1].span()%l.step != 0 || l.span()%levels[i-1].span() != 0) {
			t.Errorf("level %d: a finer segment is not whole windows of it", i)
		}
		if i > 0 && levels[i-1].keep < l.span() {
			t.Errorf("level %d: the finer one goes before this is made of it", i)
		}
	}
	for i, want := range []time.Duration{time.Hour, 24 * time.Hour, 31 * 24 * time.Hour} {
		if got := time.Duration(levels[i].keep) * Base; got != want {
			t.Errorf("level %d is kept for %s, not %s", i, got, want)
		}
	}
}

func TestFloorToRoundsDown(t *testing.T) {
	for _, c := range []struct{ slot, step, floor, ceil int64 }{
		{0, 12, 0, 0}, {1, 12, 0, 12}, {11, 12, 0, 12}, {12, 12, 12, 12}, {-1, 12, -12, 0}, {-12, 12, -12, -12},
	} {
		if f, e := floorTo(c.slot, c.step), ceilTo(c.slot, c.step); f != c.floor || e != c.ceil {
			t.Errorf("%d by %d: %d, %d, want %d, %d", c.slot, c.step, f, e, c.floor, c.ceil)
		}
	}
}

// TestTicksFillSlots: a tick that jitters by up to 1 s gets every slot once, wherever in
// the slot it is.
func TestTicksFillSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Unix(1_700_000_000, 0).Add(time.Duration(rapid.Int64Range(0, int64(Base)-1).Draw(t, "phase")))
		var last time.Time
		var slot int64
		for i := range 100 {
			now := begin.Add(time.Duration(i)*Base + time.Duration(rapid.Int64Range(-1e9, 1e9).Draw(t, "jitter")))
			got := nextSlot(now, last, slot)
			if i > 0 && got != slot+1 {
				t.Fatalf("tick %d at %s took slot %d after %d", i, now, got, slot)
			}
			last, slot = now, got
		}
	})
}

// TestSlotsFollowTheClock: a slot differs by at most one from the slot of the clock.
func TestSlotsFollowTheClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		var last time.Time
		var slot int64
		for range 50 {
			now = now.Add(time.Duration(rapid.OneOf(rapid.Int64Range(-1e12, 1e12), rapid.Int64Range(0, 1e10)).Draw(t, "step")))
			got := nextSlot(now, last, slot)
			if d := got - slotAt(now); d < -1 || d > 1 {
				t.Fatalf("%s took slot %d, the clock says %d", now, got, slotAt(now))
			}
			last, slot = now, got
		}
	})
}

func TestQueryPlans(t *testing.T) {
	const now = 200_000_000
	const hour, day = 720, 17_280
	for _, c := range []struct {
		name           string
		from, to, step int64
		level          int
		wantStep       int64
		wantPoints     int
	}{
		{"the last hour", now - hour, now, 1, 0, 1, hour},
		{"the last hour, coarser", now - hour, now, 12, 0, 12, 61},
		{"the last hour, few points", now - hour, now, 0, 0, 3, 241},
		{"six hours", now - 6*hour, now, 1, 1, 12, 361},
		{"six hours, by 7 slots", now - 6*hour, now, 7, 1, 12, 361},
		{"the last day", now - day, now, 0, 1, 60, 289},
		{"a minute yesterday", now - day, now - day + 12, 1, 1, 12, 2},
		{"a month", now - 31*day, now, 120, 2, 360, 1489},
		{"a month, few points", now - 31*day, now, 0, 2, 1800, 299},
		{"a century", 0, now, 1, 2, 360, 1501},
		{"a century as one", 0, now, 1 << 40, 2, 31 * day, 2},
		{"nothing", now, now - 5, 1, 0, 1, 0},
		{"what is to come", now + 5, now + 10, 1, 0, 1, 0},
	} {
		p := planQuery(now, c.from, c.to, c.step, defaultPoints, MaxPoints)
		if p.level != c.level || p.step != c.wantStep || p.points() != c.wantPoints {
			t.Errorf("%s: level %d, step %d, %d points; want %d, %d, %d", c.name, p.level, p.step, p.points(), c.level, c.wantStep, c.wantPoints)
		}
	}
}

func TestQueryPlansAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.Int64Range(1e6, 1e9).Draw(t, "now")
		from := now - rapid.OneOf(rapid.Int64Range(-100, 2000), rapid.Int64Range(-1e6, 1e6)).Draw(t, "ago")
		to := from + rapid.OneOf(rapid.Int64Range(-10, 2000), rapid.Int64Range(0, 1e6)).Draw(t, "wide")
		step := rapid.OneOf(rapid.Int64Range(0, 200), rapid.Int64Range(0, 1e6)).Draw(t, "step")
		p := planQuery(now, from, to, step, 300, 2000)
		l := levels[p.level]
		if n := p.points(); n < 0 || n > 2000 || step <= 0 && n > 300 {
			t.Fatalf("%d points: %+v", n, p)
		}
		if p.step%l.step != 0 || p.from%p.step != 0 || p.to%p.step != 0 {
			t.Fatalf("not on the grid: %+v", p)
		}
		if p.points() > 0 && (p.from > max(from, levels[coarsest].covered(now)) || p.to < min(to, now)) {
			t.Fatalf("not the range: %+v", p)
		}
		if p.level > 0 && from >= levels[p.level-1].covered(now) {
			t.Fatalf("a finer level holds it: %+v", p)
		}
	})
}
