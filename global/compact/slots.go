package compact

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Slots are the slots of one job. The zero value has none.
type Slots struct {
	namespace, job string
	list           []slot // by group, first index and region
}

// slot is a region.Slot without the names of its job. Names that many slots share are stored once.
// Values that few slots have are in more.
type slot struct {
	group, at                          unique.Handle[string]
	generation, revision, version, run int64
	from, to                           int32
	because                            string
	more                               *more
	state, desired                     uint8 // positions in states and desires
	system, bound, unbound, vacant     bool
}

// The states and desired states that a slot may have.
var (
	states  = [...]region.SlotState{"", region.Offered, region.Accepted, region.Done, region.Rejected, region.Returned, region.Revoked, region.Stopped, region.Kept}
	desires = [...]region.Desired{"", region.DesiredRun, region.DesiredStop, region.DesiredRevoke, region.DesiredHold}
)

// more holds the values that few slots have.
type more struct {
	hold, stop      time.Duration
	unlessConnected bool
	reason, message string
	former          []region.FormerOwner
	returnTo, home  string
	parallel        int
}

// pack returns a slot without its names.
func pack(s *region.Slot) slot {
	out := slot{
		state: uint8(max(0, slices.Index(states[:], s.State))), desired: uint8(max(0, slices.Index(desires[:], s.Desired))),
		generation: s.Generation, revision: s.Revision, version: s.JobVersion, run: s.Run, from: int32(s.From), to: int32(s.To),
		because: s.PlacedBecause, system: s.System, bound: s.Bound, unbound: s.Unbound, vacant: s.Vacant,
	}
	if s.Hold != 0 || s.StopTime != 0 || s.UnlessConnected || s.Reason != "" || s.Message != "" || s.ReturnTo != "" || s.Home != "" || len(s.Former) > 0 || s.Parallel != 0 {
		out.more = &more{
			hold: s.Hold, stop: s.StopTime, unlessConnected: s.UnlessConnected, reason: s.Reason, message: s.Message,
			former: s.Former, returnTo: s.ReturnTo, home: s.Home, parallel: s.Parallel,
		}
	}
	return out
}

// unpack sets a slot to the stored one. A slot is large, so it is not returned.
func (s *Slots) unpack(p *slot, out *region.Slot) {
	*out = region.Slot{
		Namespace: s.namespace, Job: s.job, Group: p.group.Value(), Region: p.at.Value(), State: states[p.state], Desired: desires[p.desired],
		Generation: p.generation, Revision: p.revision, JobVersion: p.version, Run: p.run, From: int(p.from), To: int(p.to),
		PlacedBecause: p.because, System: p.system, Bound: p.bound, Unbound: p.unbound, Vacant: p.vacant,
	}
	if m := p.more; m != nil {
		out.Hold, out.StopTime, out.UnlessConnected, out.Reason, out.Message = m.hold, m.stop, m.unlessConnected, m.reason, m.message
		out.Former, out.ReturnTo, out.Home, out.Parallel = m.former, m.returnTo, m.home, m.parallel
	}
}

// find returns the position of a slot in the list, or where to insert it. The slots of a group do
// not overlap, so a group and a first index name one slot. Only a system job has several such
// slots, one in each region.
func (s *Slots) find(group string, from int, at string, system bool) (int, bool) {
	if !system {
		at = ""
	}
	return slices.BinarySearchFunc(s.list, from, func(p slot, from int) int {
		c := cmp.Or(strings.Compare(p.group.Value(), group), cmp.Compare(int(p.from), from))
		if c != 0 || !p.system {
			return cmp.Or(c, strings.Compare("", at))
		}
		return strings.Compare(p.at.Value(), at)
	})
}

// Put adds a slot, or replaces the one with the same key.
func (s *Slots) Put(v *region.Slot) {
	s.namespace, s.job = v.Namespace, v.Job
	p := pack(v)
	i, found := s.find(v.Group, v.From, v.Region, v.System)
	if !found {
		p.group, p.at = unique.Make(v.Group), unique.Make(v.Region)
		s.list = slices.Insert(s.list, i, p)
		return
	}
	p.group, p.at = s.list[i].group, s.list[i].at
	if p.at.Value() != v.Region {
		p.at = unique.Make(v.Region)
	}
	s.list[i] = p
}

// Delete removes the slot with a key.
func (s *Slots) Delete(key string) {
	if group, from, at, system, ok := s.parse(key); ok {
		if i, found := s.find(group, from, at, system); found {
			s.list = slices.Delete(s.list, i, i+1)
		}
	}
}

// Get returns the slot that has the given key: see region.Slot.Key.
func (s *Slots) Get(key string) (slot region.Slot, ok bool) {
	ok = s.Read(key, &slot)
	return slot, ok
}

// Read sets a slot to the one that has the given key, if there is one.
func (s *Slots) Read(key string, slot *region.Slot) bool {
	if group, from, at, system, ok := s.parse(key); ok {
		if i, found := s.find(group, from, at, system); found {
			s.unpack(&s.list[i], slot)
			return true
		}
	}
	return false
}

// Find returns the slot with the key of another slot of the job.
func (s *Slots) Find(like *region.Slot) (slot region.Slot, found bool) {
	i, found := s.find(like.Group, like.From, like.Region, like.System)
	if found {
		s.unpack(&s.list[i], &slot)
	}
	return slot, found
}

// parse returns the parts of a key; ok is false for a key of another job.
func (s *Slots) parse(key string) (group string, from int, at string, system, ok bool) {
	if len(key) <= len(s.namespace)+len(s.job)+2 || key[:len(s.namespace)] != s.namespace || key[len(s.namespace)] != '/' ||
		key[len(s.namespace)+1:][:len(s.job)] != s.job || key[len(s.namespace)+1+len(s.job)] != '/' {
		return "", 0, "", false, false
	}
	key, at, system = strings.Cut(key[len(s.namespace)+len(s.job)+2:], "@")
	group, index, _ := strings.Cut(key, "/")
	from, err := strconv.Atoi(index)
	return group, from, at, system, err == nil
}

// Len returns the number of slots.
func (s *Slots) Len() int { return len(s.list) }

// All yields the slots by group, first index and region.
func (s *Slots) All() iter.Seq[region.Slot] {
	return func(yield func(region.Slot) bool) {
		for i := range s.list {
			var slot region.Slot
			s.unpack(&s.list[i], &slot)
			if !yield(slot) {
				return
			}
		}
	}
}

// Sorted returns the slots by group, first index and region.
func (s *Slots) Sorted() []region.Slot {
	out := make([]region.Slot, len(s.list))
	for i := range s.list {
		s.unpack(&s.list[i], &out[i])
	}
	return out
}
