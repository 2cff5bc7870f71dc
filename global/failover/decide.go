package failover

import (
	"fmt"
	"time"
)

// Decide makes the plan. Its cost grows with the number of silent and lost regions and of their
// slots.
func Decide(s Snapshot) Plan {
	var p Plan
	var shown []*Region // parallel to p.Regions
	for i := range s.Regions {
		if r := &s.Regions[i]; s.shown(r) {
			shown = append(shown, r)
			p.Regions = append(p.Regions, s.regionDue(r))
		}
	}
	m := s.massLoss(p.Regions)
	p.Paused, p.Unconfirmed = m.paused || s.earlierLasts(), s.unconfirmed()
	for i := range p.Regions {
		d, r := &p.Regions[i], shown[i]
		held := ""
		if p.Holds() && !r.NothingRuns {
			held = p.held()
		}
		d.conclude(r, held)
		switch {
		case !d.Moves || held != "":
		case d.In > 0:
			p.nextIn(d.In)
		case !r.Lost:
			p.Verdicts = append(p.Verdicts, Verdict{Region: r.Name, Why: d.verdict(r)})
		}
		for _, slot := range d.Slots {
			if slot.Moves && slot.In > 0 && held == "" {
				p.nextIn(slot.In)
			}
		}
	}
	s.alarm(&p, m)
	return p
}

func (p *Plan) nextIn(in time.Duration) {
	if p.Next == 0 || in < p.Next {
		p.Next = in
	}
}

// shown reports whether the plan has an entry for a region.
func (s Snapshot) shown(r *Region) bool {
	return !r.NeverConnected && (r.Lost || r.Silent >= s.Quiet())
}

// regionDue returns when the slots of a region may move if the region does not return.
func (s Snapshot) regionDue(r *Region) RegionDue {
	out := RegionDue{Region: r.Name, Lost: r.Lost, Slots: make([]SlotDue, 0, len(r.Slots))}
	for _, slot := range r.Slots {
		out.Slots = append(out.Slots, s.slotDue(r, slot))
	}
	joinSets(out.Slots)
	for _, d := range out.Slots {
		if d.Moves && (!out.Moves || d.In < out.In) {
			out.Moves, out.In = true, d.In
		}
	}
	return out
}

// slotDue returns when one slot may move.
func (s Snapshot) slotDue(r *Region, slot Slot) SlotDue {
	never := func(format string, args ...any) SlotDue {
		return SlotDue{Slot: slot, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case (slot.Stopping || slot.System) && r.NothingRuns:
		return SlotDue{Slot: slot, Drop: true, Message: "is dropped: an operator stated that nothing runs in " + r.Name}
	case slot.System:
		return never("stays: a system job runs in each region for itself")
	case slot.Stopping:
		return never("stays: %s has not confirmed that its instances have stopped", r.Name)
	case slot.Done:
		return never("stays: its instances have ended")
	case r.NothingRuns:
		return SlotDue{Slot: slot, Moves: true, Message: "moves: an operator stated that nothing runs in " + r.Name}
	case !slot.Replace:
		return never("stays: disconnect.region.replace is false, only `nusa region lose %s` moves it", r.Name)
	case slot.Stop && slot.Unbound:
		return never("stays: a version that no lease stops may run in %s, only `nusa region lose %s` moves it", r.Name, r.Name)
	}
	left := max(slot.After, s.notice()) - r.Silent
	why := fmt.Sprintf("disconnect.region.after is %s", slot.After)
	if slot.After < s.notice() {
		why = fmt.Sprintf("a loss is noticed after %s", s.notice())
	}
	if slot.Stop || slot.Bound {
		if slot.BoundFor > left {
			left, why = slot.BoundFor, "until then it may run under the lease of "+r.Name
		}
	}
	if calm := s.Lease - s.Calm; s.Calm < s.Active && calm > max(left, 0) {
		left, why = calm, "a mass loss ended just now"
	}
	if left <= 0 {
		left, why = 0, "it is due"
	}
	return SlotDue{Slot: slot, Moves: true, In: left, Message: why}
}

// joinSets makes colocated groups of a region due together: when the last one is due, or never if
// one of them is never due. Slots that have ended, or that must stop anyway, do not count.
func joinSets(slots []SlotDue) {
	type key struct{ namespace, job, set string }
	last := map[key]*SlotDue{}
	for i := range slots {
		d := &slots[i]
		if d.Set == "" || d.Done || d.Stopping || d.System {
			continue
		}
		k := key{d.Namespace, d.Job, d.Set}
		if old := last[k]; old == nil || old.Moves && (!d.Moves || d.In > old.In) {
			last[k] = d
		}
	}
	decided := make(map[key]SlotDue, len(last))
	for k, d := range last {
		decided[k] = *d
	}
	for i := range slots {
		d := &slots[i]
		with, colocated := decided[key{d.Namespace, d.Job, d.Set}]
		if !colocated || d.Done || d.Stopping || d.System || d.Moves == with.Moves && d.In == with.In {
			continue
		}
		d.Moves, d.In, d.Message = with.Moves, with.In, fmt.Sprintf("colocated with %s: %s", with.Slot, with.Message)
	}
}

// conclude writes the messages of a region and its slots, and sets which slots may move now. held
// is the reason why no slot moves; empty: slots may move.
func (d *RegionDue) conclude(r *Region, held string) {
	moving, ended, left := 0, 0, 0
	for i := range d.Slots {
		slot := &d.Slots[i]
		if slot.Done && !slot.Stopping {
			ended++
		}
		if !slot.Moves {
			continue
		}
		moving++
		left += slot.To - slot.From
		slot.Now = slot.In == 0 && r.Lost && held == ""
		switch {
		case r.NothingRuns:
		case held != "":
			slot.Message = held + "; " + slot.Message
		case slot.Now:
			slot.Message = "moves: " + slot.Message
		default:
			slot.Message = fmt.Sprintf("would move unless %s returns: %s", r.Name, slot.Message)
		}
	}
	switch {
	case len(d.Slots) == 0 && r.mayRun() > 0:
		d.Message = fmt.Sprintf("its work has moved; %s may still run there", instances(r.mayRun()))
	case len(d.Slots) == 0:
		d.Message = "no work is assigned to it any more"
	case ended == len(d.Slots) && r.mayRun() > 0:
		d.Message = fmt.Sprintf("only slots of ended instances are left; %s that moved may still run there", instances(r.mayRun()))
	case ended == len(d.Slots):
		d.Message = "only slots of ended instances are left"
	case moving == 0 && r.NothingRuns:
		d.Message = "none of its slots moves"
	case moving == 0:
		d.Message = fmt.Sprintf("none of its slots moves by itself; if the region is gone for good: `nusa region lose %s`", r.Name)
	case held != "":
		d.Message = held
	case r.NothingRuns:
		d.Message = fmt.Sprintf("still to be moved: %s, each as soon as another region has room", instances(left))
	case d.In > 0:
		d.Message = fmt.Sprintf("its first slot would move unless %s returns", r.Name)
	default:
		d.Message = "its slots move when they are due and another region has room"
	}
}

// mayRun returns how many instances may still run in the region although other regions own them.
func (r *Region) mayRun() int {
	if r.NothingRuns {
		return 0
	}
	return r.Former
}

func instances(n int) string {
	if n == 1 {
		return "1 instance"
	}
	return fmt.Sprintf("%d instances", n)
}

// verdict returns why the region is declared lost.
func (d *RegionDue) verdict(r *Region) string {
	for _, slot := range d.Slots {
		if slot.Moves && slot.In == 0 {
			return fmt.Sprintf("silent for %s; %s is due", r.Silent.Truncate(time.Second), slot.Slot)
		}
	}
	return ""
}
