package topology

import (
	"fmt"
	"time"
)

const (
	// MinMoveGain and MinMoveGainShare are the hysteresis of moves for latency. A gain of
	// less than MinMoveGain, or of less than the present round trip divided by
	// MinMoveGainShare, is no reason to move. Ordinary routing changes cause differences
	// of this size, and a move costs more than such a gain is worth.
	MinMoveGain      = 10 * time.Millisecond
	MinMoveGainShare = 3
	// BreachSustain is the default of Bound.Sustain. Probes report windows of ten minutes,
	// in which p99 is the worst of about twenty samples. So one outlier raises p99 for ten
	// minutes, and a breach must last longer than that.
	BreachSustain = 15 * time.Minute
	// BreachGap is how long a breach is remembered without evidence. It is the time of
	// four probes at the default interval.
	BreachGap = 2 * time.Minute
)

// ImprovesEnough reports whether a move is worthwhile. now is the round trip before the
// move, and then the round trip after it.
func ImprovesEnough(now, then time.Duration) bool {
	gain := now - then
	return gain >= MinMoveGain && gain >= now/MinMoveGainShare
}

// Bound is an upper bound for a distance, and the kinds of evidence that count.
type Bound struct {
	// MaxRTT is the greatest round trip that keeps the bound.
	MaxRTT time.Duration
	// Guesses: predicted and estimated distances count as evidence, too.
	Guesses bool
	// Stale: stale measurements count as evidence, too.
	Stale bool
	// Sustain is the value of Breach.Balance at which a breach is sustained; 0 =
	// BreachSustain.
	Sustain time.Duration
}

func (b Bound) sustain() time.Duration {
	if b.Sustain > 0 {
		return b.Sustain
	}
	return BreachSustain
}

// evidence reports whether a distance counts as evidence for the bound. An unreachable
// region has no latency; to leave such a region is a matter of failover.
func (b Bound) evidence(d Distance) bool {
	switch {
	case !d.Known():
		return false
	case d.Source != Measured:
		return b.Guesses
	case d.State == Stale:
		return b.Stale
	}
	return true
}

// BreachState says whether a bound is kept.
type BreachState uint8

const (
	// WithinBound: the bound is kept, or the breach has healed.
	WithinBound BreachState = iota
	// Broken: the bound is broken, but not for long enough.
	Broken
	// Sustained: the bound has been broken for long enough to act.
	Sustained
)

func (s BreachState) String() string {
	switch s {
	case WithinBound:
		return "kept"
	case Broken:
		return "broken"
	case Sustained:
		return "sustained"
	}
	return fmt.Sprintf("breach(%d)", uint8(s))
}

// Breach tracks whether successive distances keep one bound. It is a step function without
// a clock. Time over the bound fills a balance, and time within the bound drains it. The
// breach is sustained when the balance reaches Bound.Sustain, and healed when the balance
// is 0. So one good value among bad values changes nothing, and neither does one bad value
// among good values. If a distance is over the bound for less than half of the time, the
// breach is never sustained. The zero value has no evidence.
type Breach struct {
	State BreachState
	// Since is how long ago the bound broke: the time since State was last
	// WithinBound. It is 0 while State is WithinBound.
	Since time.Duration
	// Balance is the time over the bound minus the time within it, but always
	// 0..Bound.Sustain.
	Balance time.Duration
	// Worst is the longest distance since the bound broke.
	Worst time.Duration
	// Latest is the latest evidence, and SinceEvidence its age. Both are meaningless
	// unless HasEvidence.
	Latest        time.Duration
	SinceEvidence time.Duration
	HasEvidence   bool
	// Over: the latest evidence broke the bound.
	Over bool
}

// Step processes the present distance. passed is the time since the last step; a negative
// passed counts as 0. Without evidence no time is counted, and after BreachGap the breach
// is forgotten. If two successive values are on different sides of the bound, the moment
// of the crossing is unknown, and the time between them does not count.
func (b Breach) Step(bound Bound, d Distance, passed time.Duration) Breach {
	passed = max(passed, 0)
	b.SinceEvidence += passed
	if b.State != WithinBound {
		b.Since += passed
	}
	if b.HasEvidence && b.SinceEvidence >= BreachGap {
		b = Breach{}
	}
	if !bound.evidence(d) {
		return b
	}
	over := d.RTT > bound.MaxRTT
	if b.HasEvidence && over == b.Over {
		if over {
			b.Balance = min(b.Balance+b.SinceEvidence, bound.sustain())
		} else {
			b.Balance = max(b.Balance-b.SinceEvidence, 0)
		}
	}
	b.Latest, b.SinceEvidence, b.HasEvidence, b.Over = d.RTT, 0, true, over
	if over {
		b.Worst = max(b.Worst, d.RTT)
	}
	switch {
	case b.Balance >= bound.sustain():
		b.State = Sustained
	case !over && b.Balance == 0:
		b.State, b.Since, b.Worst = WithinBound, 0, 0
	case b.State == WithinBound:
		b.State = Broken
	}
	return b
}

// String prints for example "broken for 1m30s, 58.0ms now, 61.0ms at worst".
func (b Breach) String() string {
	switch {
	case !b.HasEvidence:
		return "kept: nothing known"
	case b.State == WithinBound:
		return fmt.Sprintf("kept, %.1fms now", ms(b.Latest))
	}
	s := fmt.Sprintf("%s for %s, %.1fms now, %.1fms at worst", b.State, b.Since.Round(time.Second), ms(b.Latest), ms(b.Worst))
	if !b.Over {
		s += ", healing"
	}
	return s
}
