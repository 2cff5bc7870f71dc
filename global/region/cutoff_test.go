package region_test

import (
	"math/rand/v2"
	"slices"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
)

// cutOff is the part of a federation that cuts regions off and moves their slots.
type cutOff struct {
	// cut regions get no orders. Their answers arrive late or never.
	cut map[string]bool
	// binds: the region's lease binds the job. If false, a region that is cut off keeps running it.
	binds bool
	// newest generation of each index so far.
	newest map[int]int64
}

func (f *federation) owners() map[int]string {
	out := map[int]string{}
	for _, s := range f.slots {
		for i := s.From; i < s.To; i++ {
			out[i] = s.Region
			if s.Vacant {
				out[i] = "nobody"
			}
		}
	}
	return out
}

// mayRun reports whether a region may run an index that it does not own: it is cut off, or
// it has not answered for the index since a verdict.
func (f *federation) mayRun(name string, i int) bool {
	if f.binds {
		return false
	}
	return slices.ContainsFunc(f.slots, func(s region.Slot) bool {
		return s.From <= i && i < s.To && slices.ContainsFunc(s.Former, func(o region.FormerOwner) bool { return o.Region == name })
	})
}

func (f *federation) stepCutOff(d *rand.Rand, name string) {
	switch pick(d, "cut", "verdict", "verdict", "return", "return", "planned") {
	case "cut":
		if len(f.cut) < len(f.names)-1 {
			f.cut[name] = true
		}
	case "verdict":
		if f.cut[name] {
			f.verdict(d, name)
		}
	case "return":
		f.comesBack(name)
	case "planned":
		if i, ok := f.pick(d, len(f.slots)); ok {
			s := f.slots[i]
			from := s.From + d.IntN(s.Count())
			f.write(region.ReturnPart(s, from, from+1+d.IntN(s.To-from), name))
		}
	}
}

// verdict moves some slots of a cut-off region to another one. It first ends a lease that
// binds the job.
func (f *federation) verdict(d *rand.Rand, name string) {
	if f.binds {
		f.revision++
		m, ok := f.regions[name].(*modelRegion)
		if !ok {
			return
		}
		m.fence(f.revision)
	}
	up := slices.DeleteFunc(slices.Clone(f.names), func(n string) bool { return f.cut[n] })
	for _, s := range slices.Clone(f.slots) {
		if s.Region != name || s.State == region.Done || s.Vacant || s.Desired == region.DesiredStop || d.IntN(3) == 0 {
			continue
		}
		former := region.FormerOwner{Region: name, Generation: s.Generation, MayRun: !f.binds}
		s.Region = pick(d, up...)
		if f.regions[s.ReturnTo] != nil && !f.cut[s.ReturnTo] {
			s.Region = s.ReturnTo
		}
		s.Former = append(slices.DeleteFunc(slices.Clone(s.Former), func(o region.FormerOwner) bool { return o.Region == s.Region }), former)
		if s.Home == "" {
			s.Home = name
		} else if s.Home == s.Region {
			s.Home = ""
		}
		s.State, s.Desired, s.Generation, s.UnlessConnected, s.ReturnTo = region.Offered, region.DesiredRun, 0, false, ""
		f.write([]region.Change{{Slot: s}})
		f.seen["moved"]++
	}
}

// comesBack connects a region again and lets it hold the instances that may return to it.
func (f *federation) comesBack(name string) {
	if !f.cut[name] {
		return
	}
	for _, s := range slices.Clone(f.slots) {
		i := slices.IndexFunc(s.Former, func(o region.FormerOwner) bool { return o.Region == name })
		if i < 0 || s.Home == "" || f.binds || f.job.Type == place.System {
			continue
		}
		s.Former = slices.Clone(s.Former)
		s.Former[i].Hold = true
		f.write([]region.Change{{Slot: s}})
		f.seen["held"]++
	}
	delete(f.cut, name)
}
