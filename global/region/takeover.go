package region

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Takeover gives indices of a slot to another region without an answer of the owner: the owner was
// declared lost, or the slot is vacant.
type Takeover struct {
	// From and To are the bounds of the indices: From ≤ i < To.
	From, To int
	// Region is the new owner.
	Region string
	// JobVersion and Run are the version and the run of the new offer. Bound: the lease of the new
	// owner binds that version. StopTime is then the version's stop time.
	JobVersion, Run int64
	Bound           bool
	StopTime        time.Duration
	// Because says in one line why the new owner was chosen.
	Because string
	// Fence is the fence of the verdict. NothingRuns: an operator stated that the former owner runs
	// nothing, so the former owner has nothing to confirm.
	Fence       uint64
	NothingRuns bool
	// Hold is as in Slot.
	Hold time.Duration
	// Moved is the time by the wall clock. It is only shown.
	Moved time.Time
}

// Bind notes that the owner may run one more version of the job.
func (s *Slot) Bind(bound bool, stop time.Duration) {
	if plant.Is(plant.NewestOnly) {
		s.Bound, s.Unbound, s.StopTime = bound, !bound, stop
		return
	}
	if !bound {
		s.Unbound = true
		return
	}
	s.Bound, s.StopTime = true, max(s.StopTime, stop)
}

// bindFormer notes which versions the new owner may still run, if it was a former owner of the
// slot. was is the slot before the takeover.
func (s *Slot) bindFormer(was Slot) {
	i := was.former(s.Region)
	if i < 0 {
		return
	}
	if f := was.Former[i]; f.Bound {
		s.Bind(true, f.StopTime)
	}
	s.Unbound = s.Unbound || was.Former[i].MayRun
}

// Crowded reports whether the slot, with one more former owner, would forget one that may still run
// the slot.
func (s Slot) Crowded() bool {
	return len(s.Former) >= MaxFormer && !slices.ContainsFunc(s.Former, func(f FormerOwner) bool { return !f.MayRun })
}

// forgetOldest returns the former owners without the oldest one that cannot run the slot.
func (s Slot) forgetOldest() []FormerOwner {
	oldest := max(0, slices.IndexFunc(s.Former, func(f FormerOwner) bool { return !f.MayRun }))
	return slices.Delete(slices.Clone(s.Former), oldest, oldest+1)
}

// TakeOver returns the changes for parts of a slot. The parts are in ascending order and do not
// overlap. Indices outside the parts stay with the owner. The parts are new offers, which keep the
// former owner on record until it confirms, unless nothing runs there.
func TakeOver(s Slot, parts ...Takeover) []Change {
	var changes []Change
	rest := s // the part of the slot that is left; the loop takes the last part first
	for _, p := range slices.Backward(parts) {
		next := p.slot(s)
		cut := replace(rest, p.From, p.To, &next)
		if p.From == rest.From {
			return append(cut, changes...)
		}
		// The first change keeps the key of the slot. The next part cuts it again.
		changes = append(cut[1:], changes...)
		rest = cut[0].Slot
	}
	return append([]Change{{Slot: rest}}, changes...)
}

// slot returns the slot at the new owner.
func (p Takeover) slot(s Slot) Slot {
	next := s
	next.Region, next.State, next.Desired, next.Generation = p.Region, Offered, DesiredRun, 0
	next.JobVersion, next.Run, next.Hold, next.UnlessConnected = p.JobVersion, p.Run, p.Hold, false
	next.Reason, next.Message, next.PlacedBecause, next.ReturnTo, next.Vacant = "", "", p.Because, "", false
	next.Parallel = 0
	next.Bound, next.StopTime, next.Unbound = false, 0, false
	next.Bind(p.Bound, p.StopTime)
	next.bindFormer(s)
	next.Former = slices.Clip(s.without(p.Region)) // the new owner may be a former owner
	if !p.NothingRuns && !s.Vacant {
		next.Former = append(next.Former, FormerOwner{
			Region: s.Region, Generation: s.Generation, Moved: p.Moved, Fence: p.Fence, MayRun: s.Unbound,
			Bound: s.Bound, StopTime: s.StopTime,
		})
		if len(next.Former) > MaxFormer {
			next.Former = next.forgetOldest()
		}
	}
	if next.Home == "" && !s.Vacant {
		next.Home = s.Region
	}
	if next.Home == p.Region {
		next.Home = ""
	}
	return next
}
