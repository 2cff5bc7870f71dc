package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// quiet reports whether every instance has an owner and every slot has the
// right desired state. System jobs are never quiet: a new region may have come.
func (j *Job) quiet() bool {
	if !j.Stopped && j.Type == System {
		return false
	}
	covered := 0
	for i := range j.Slots {
		if kind, _, _ := j.correct(&j.Slots[i], nil); kind != "" || j.Slots[i].Vacant && !j.Stopped {
			return false
		}
		if g := j.group(j.Slots[i].Group); g != nil && !j.Slots[i].System {
			covered += max(0, min(j.Slots[i].To, g.Count)-j.Slots[i].From)
		}
	}
	if j.Stopped {
		return true
	}
	if len(j.Disconnected)+len(j.Movable) > 0 || slices.ContainsFunc(j.Slots, func(s region.Slot) bool { return s.Desired == region.DesiredRevoke }) {
		return false
	}
	if slices.ContainsFunc(j.Breaches, func(b Breach) bool { return b.State == topology.Sustained }) {
		return false
	}
	for i := range j.Groups {
		covered -= j.Groups[i].Count
	}
	return covered == 0 // slots never overlap
}

// leaves reports whether slots have to leave a draining region, or may return to the region
// from which a verdict moved them.
func (j *Job) leaves(regions regionList) bool {
	return !j.Stopped && slices.ContainsFunc(j.Slots, func(s region.Slot) bool {
		if !movable(&s) || s.Desired != region.DesiredRun {
			return false
		}
		home := regions.index(s.Home)
		at := regions.of(&s)
		return at != nil && at.Draining || s.Home != "" && home >= 0 && regions[home].Connected
	})
}

// correct returns the action that an existing slot needs, and why; kind "" is
// none. r is the slot's region, nil if unknown: with it, a slot of a new version
// may also have to leave a region that the version does not allow.
func (j *Job) correct(s *region.Slot, r *Region) (kind Kind, reason, why string) {
	if s.Desired == region.DesiredStop || s.Desired == region.DesiredRevoke && !j.Stopped {
		return "", "", ""
	}
	g := j.group(s.Group)
	switch {
	case j.Stopped:
		return Stop, ReasonStoppedByUser, "the job was stopped"
	case g == nil:
		return Stop, ReasonSuperseded, fmt.Sprintf("version %d has no group %s", j.Version, s.Group)
	case s.System != (j.Type == System):
		return Stop, ReasonSuperseded, fmt.Sprintf("version %d is a %s job", j.Version, j.Type)
	case s.System && r != nil && r.Draining:
		return Stop, ReasonDraining, "an operator drains the region"
	case !s.System && s.From >= g.Count:
		return Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", g.Count)
	case s.JobVersion != j.Version && (s.State != region.Done || s.JobVersion < g.UnchangedSince), !s.OfRun(j.Run):
		if r == nil || allowed(g.Regions.Allow, r) {
			return Update, "", fmt.Sprintf("version %d → %d", s.JobVersion, j.Version)
		}
		why = fmt.Sprintf("version %d does not allow %s", j.Version, r.Name)
		if s.System {
			return Stop, ReasonNotAllowed, why
		}
		return Revoke, ReasonNotAllowed, why
	case !s.System && s.To > g.Count:
		return Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", g.Count)
	}
	return "", "", ""
}

// Group returns the group with a name, nil if there is none.
func (j *Job) Group(name string) *Group { return j.group(name) }

// SetOf names the groups that share their regions with a group: the first of them. It
// returns "" for a group that shares its regions with no other.
func (j *Job) SetOf(group string) string {
	if len(j.Colocate) == 0 {
		return ""
	}
	for _, set := range j.sets() {
		if len(set) > 1 && slices.ContainsFunc(set, func(g *Group) bool { return g.Name == group }) {
			return set[0].Name
		}
	}
	return ""
}

// awaited returns a former owner of a slot for which the present version waits; empty if
// there is none. The region's lease binds the version, so it must not run beside what the
// former owner may run of a version without that bound.
func (j *Job) awaited(s *region.Slot) string {
	if g := j.group(s.Group); g == nil || !g.Bound || s.System {
		return ""
	}
	for _, f := range s.Former {
		if f.MayRun {
			return f.Region
		}
	}
	return ""
}

func (j *Job) group(name string) *Group {
	i, ok := slices.BinarySearchFunc(j.Groups, name, func(g Group, name string) int { return cmp.Compare(g.Name, name) })
	if !ok {
		return nil
	}
	return &j.Groups[i]
}

// slotsOf returns the slots of a group; Job.Slots is sorted by group.
func (j *Job) slotsOf(group string) []region.Slot {
	i, _ := slices.BinarySearchFunc(j.Slots, group, func(s region.Slot, name string) int { return cmp.Compare(s.Group, name) })
	k := i
	for k < len(j.Slots) && j.Slots[k].Group == group {
		k++
	}
	return j.Slots[i:k]
}

// sets returns the groups of a job that are placed together: groups that
// colocate joins, and every other group alone. Sets are in the order of their
// first group.
func (j *Job) sets() [][]*Group {
	root := make([]int, len(j.Groups))
	for i := range root {
		root[i] = i
	}
	find := func(i int) int {
		for root[i] != i {
			i = root[i]
		}
		return i
	}
	for _, names := range j.Colocate {
		first := -1
		for _, name := range names {
			i := slices.IndexFunc(j.Groups, func(g Group) bool { return g.Name == name && g.Count > 0 })
			switch {
			case i < 0:
			case first < 0:
				first = i
			default:
				a, b := find(first), find(i)
				root[max(a, b)] = min(a, b)
			}
		}
	}
	at := map[int]int{}
	var sets [][]*Group
	for i := range j.Groups {
		r := find(i)
		k, ok := at[r]
		if !ok {
			k = len(sets)
			at[r] = k
			sets = append(sets, nil)
		}
		sets[k] = append(sets[k], &j.Groups[i])
	}
	return sets
}
