package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/topology"
)

// quiet reports whether every instance has an owner and every slot has the right desired state.
// System jobs are never quiet, because there may be a new region.
func (j *Job) quiet(regions regionList) bool {
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
	if len(shares(j, regions, nil)) > 0 {
		return false
	}
	return covered == 0 // slots never overlap
}

// leaves reports whether slots have to leave a draining region, or may return to the region from
// which a verdict moved them.
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

// correct returns the action that an existing slot needs, and why. Kind "" means no action. r is
// the slot's region, nil if it is unknown. With r, correct also finds slots of a region that the
// new version does not allow.
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
		switch {
		case r != nil && !allowed(g.Regions.Allow, r):
			reason, why = ReasonNotAllowed, fmt.Sprintf("version %d does not allow %s", j.Version, r.Name)
		case j.refusal(s, r) != "" && !j.worthKeeping(s):
			reason, why = ReasonConfigInvalid, fmt.Sprintf("version %d cannot run there: %s", j.Version, j.refusal(s, r))
		default:
			return Update, "", fmt.Sprintf("version %d → %d", s.JobVersion, j.Version)
		}
		if s.System {
			return Stop, reason, why
		}
		return Revoke, reason, why
	case !s.System && s.To > g.Count:
		return Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", g.Count)
	}
	return "", "", ""
}

// refusal returns why no node of a slot's region accepts the config of the present version of its group, or "" if
// one may accept it, or if the slot has that work already.
func (j *Job) refusal(s *region.Slot, r *Region) string {
	g := j.group(s.Group)
	if r == nil || g == nil || s.JobVersion >= g.UnchangedSince && s.OfRun(j.Run) {
		return ""
	}
	return g.Refused[r.Name]
}

// worthKeeping reports whether the instances of a slot keep an earlier version where the present one cannot run.
// Instances that have ended, that are of another run, or that are there to prove a version do not.
func (j *Job) worthKeeping(s *region.Slot) bool {
	g := j.group(s.Group)
	return s.State != region.Done && s.OfRun(j.Run) && (g.CanaryFrom == 0 || s.From < g.CanaryFrom)
}

// KeepStable sets Stable. A group then needs the feature level that either of its versions needs, because its
// instances may get either.
func (j *Job) KeepStable(stable *Job) {
	j.Stable = stable
	if stable == nil {
		return
	}
	j.Groups = slices.Clone(j.Groups)
	for i := range j.Groups {
		g := &j.Groups[i]
		if was := stable.group(g.Name); was != nil && stable.Version < g.UnchangedSince {
			g.Level = max(g.level(), was.level())
		}
	}
}

// versionOf returns the version that an instance without a region gets, and the group in that version.
// See Job.Stable.
func (j *Job) versionOf(g *Group, index int) (version int64, of *Group) {
	if j.Paused && g.has(index) || plant.Is(plant.StableForgotten) || j.RolloutHold == "" || j.Stable == nil || j.Type != Service || j.Stable.Version >= g.UnchangedSince || g.CanaryFrom > 0 && index >= g.CanaryFrom {
		return j.Version, g
	}
	if was := j.Stable.group(g.Name); was != nil {
		return j.Stable.Version, was
	}
	return j.Version, g
}

// sameVersion returns the end of the indices from an index on, at most to, that get the same version.
func (j *Job) sameVersion(g *Group, from, to int) int {
	if from < g.CanaryFrom && g.CanaryFrom < to {
		to = g.CanaryFrom
	}
	for i := from + 1; j.Paused && i < to; i++ {
		if g.has(i) != g.has(from) {
			return i
		}
	}
	return to
}

// changes reports whether a slot needs another action before its instances may move. A slot that keeps Stable
// while the rollout is held needs none, and one whose region refuses the present version gets it elsewhere.
func (j *Job) changes(s *region.Slot, r *Region) bool {
	kind, _, _ := j.correct(s, r)
	if j.holds(s, r) {
		return !j.keepsStable(s)
	}
	return kind != "" && !(kind == Update && j.refusal(s, r) != "")
}

// holds reports whether a slot waits for the present version because the rollout is held.
func (j *Job) holds(s *region.Slot, r *Region) bool {
	return j.RolloutHold != "" && j.restarts(s, r)
}

// keepsStable reports whether a slot's instances get Stable if they move.
func (j *Job) keepsStable(s *region.Slot) bool {
	version, _ := j.versionOf(j.group(s.Group), s.From)
	return version != j.Version
}

// Group returns the named group, or nil if there is none.
func (j *Job) Group(name string) *Group { return j.group(name) }

// SetOf returns the name of the set of groups that share their regions with a group: the name of
// its first group. It returns "" for a group that shares its regions with no other.
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

// blocked returns why an existing slot must not get the present version yet, or "" if nothing is in
// the way. kind is the action that the slot needs.
func (j *Job) blocked(s *region.Slot, at *Region, kind Kind) string {
	vacant := s.Vacant && !j.Stopped
	former := j.awaited(s)
	switch {
	case former != "" && (kind == Update || vacant && s.From < j.group(s.Group).Count):
		return fmt.Sprintf("version %d must not run beside another one, and %s may still run %s%s", j.Version, former, s.Group, region.FormatRange(s.From, s.To))
	case kind == Update && j.refusal(s, at) != "":
		return fmt.Sprintf("version %d cannot run there: %s", j.Version, j.refusal(s, at))
	case kind == Update && at != nil && at.FeatureLevel < boundLevel && j.group(s.Group).Bound:
		return fmt.Sprintf("version %d needs the region's lease: it waits until each server of %s and of the global tier has feature level %d",
			j.Version, at.Name, boundLevel)
	}
	return ""
}

// awaited returns a former owner for which the version that a slot gets has to wait, or "" if there is none.
// The region's lease binds that version. It does not bind the earlier version that the
// former owner may still run. The two versions must not run at the same time.
func (j *Job) awaited(s *region.Slot) string {
	g := j.group(s.Group)
	if g == nil || s.System {
		return ""
	}
	if _, of := j.versionOf(g, s.From); !g.Bound && !of.Bound {
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

// slotsOf returns the slots of a group. Job.Slots must be sorted by group.
func (j *Job) slotsOf(group string) []region.Slot {
	i, _ := slices.BinarySearchFunc(j.Slots, group, func(s region.Slot, name string) int { return cmp.Compare(s.Group, name) })
	k := i
	for k < len(j.Slots) && j.Slots[k].Group == group {
		k++
	}
	return j.Slots[i:k]
}

// sets returns the sets of groups that are placed together. Groups that colocate joins are one set,
// and every other group is a set of its own. Sets are in the order of their first groups.
func (j *Job) sets() [][]*Group {
	if len(j.Colocate) == 0 {
		groups, sets := make([]*Group, len(j.Groups)), make([][]*Group, len(j.Groups))
		for i := range j.Groups {
			groups[i] = &j.Groups[i]
			sets[i] = groups[i : i+1 : i+1]
		}
		return sets
	}
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
