package uplink

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// holdLevel is the feature level from which on regions understand the order to hold.
const holdLevel = 1

// changesPerCommit bounds the changes of one request, so that they fit into one transaction.
const changesPerCommit = 100

// heal stores what a returning region may keep of the slots that it lost. A region ends everything
// that its orders do not name, so heal must be done before the welcome, which the first set of
// orders follows.
func heal(ctx context.Context, s *Server, name string, h *nusav1.RegionHello) error {
	st := s.st
	st.Lock()
	changes := returns(st, name, h)
	st.Unlock()
	for batch := range slices.Chunk(changes, changesPerCommit) {
		if err := change(ctx, s, batch); err != nil {
			return state.RPCErrors.Err(fmt.Errorf("return of region %s: %w", name, err))
		}
	}
	if len(changes) > 0 {
		s.Log.Info("region returns", "region", name, "slots", len(changes))
	}
	return nil
}

// offerAgain offers the slots of a lost region again, before the first welcome of another cluster
// that takes the region's name. Each hello repeats that until the region's record names the new
// cluster.
func offerAgain(ctx context.Context, s *Server, c *session, h *nusav1.RegionHello) error {
	name := h.GetDefinition().GetName()
	st := s.st
	st.Lock()
	r := st.Regions[name]
	if r == nil || r.Record.GetClusterId() == "" || r.Record.GetClusterId() == h.GetClusterId() {
		st.Unlock()
		return nil
	}
	var changes []region.Change
	_, effects := region.Step(st.SessionConfig(), r.Life, st.Clock(), helloEvent(st, c, h))
	if !slices.ContainsFunc(effects, func(e region.Effect) bool { return e.Kind == region.Refuse }) {
		for _, j := range st.Jobs {
			for slot := range j.Slots.All() {
				if slot.Region == name {
					changes = append(changes, region.Change{Slot: slot.OfferedAgain()})
				}
			}
		}
	}
	st.Unlock()
	slices.SortFunc(changes, func(a, b region.Change) int { return cmp.Compare(a.Slot.Key(), b.Slot.Key()) })
	for batch := range slices.Chunk(changes, changesPerCommit) {
		if err := change(ctx, s, batch); err != nil {
			return state.RPCErrors.Err(fmt.Errorf("offer the slots of region %s to another cluster: %w", name, err))
		}
	}
	return nil
}

// change writes changes of slots, except for slots that have changed meanwhile.
func change(ctx context.Context, s *Server, changes []region.Change) error {
	_, err := s.Commit.Do(ctx, func(t *state.Tx) error {
		for _, c := range changes {
			one := []region.Change{c}
			if t.Stale(one) {
				continue
			}
			if err := t.ChangeSlots(one); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// returns returns the changes for a returning region: which slots the region has to hold, and which
// it must not hold any more. The lock is held.
func returns(st *state.State, name string, h *nusav1.RegionHello) (out []region.Change) {
	r := st.Regions[name]
	if r == nil {
		return nil
	}
	with := failover.Return{
		Unsteady: r.Unsteady(), Holds: h.GetFeatureLevel() >= holdLevel, Draining: r.Record.GetDraining(),
	}
	at := place.Region{Name: name, Labels: r.Record.GetDefinition().GetLabels()}
	for k := range st.Moved {
		j := st.Jobs[k]
		for s := range j.Slots.All() {
			i := slices.IndexFunc(s.Former, func(f region.FormerOwner) bool { return f.Region == name })
			if i < 0 {
				continue
			}
			with := returnOf(with, j, s, &at)
			with.Stop = with.Stop || s.Former[i].Bound // the end of the lease has stopped what ran there
			keep, _ := with.Keep()
			keep = keep && s.Former[i].Fence != 0 // with fence 0, the region has given the slot up itself
			if keep == s.Former[i].Hold {
				continue
			}
			s.Former = slices.Clone(s.Former)
			s.Former[i].Hold = keep
			out = append(out, region.Change{Slot: s})
		}
	}
	slices.SortFunc(out, func(a, b region.Change) int { return cmp.Compare(a.Slot.Key(), b.Slot.Key()) })
	return out
}

// whyEnded returns why a former owner had to end what it ran of a slot. It returns "" for an answer
// of another kind. The lock is held.
func whyEnded(st *state.State, name string, a region.Answer) string {
	r, j := st.Regions[name], st.Jobs[state.JobKey{Namespace: a.Namespace, Name: a.Job}]
	if a.State != region.Revoked && a.State != region.Stopped || r == nil || j == nil {
		return ""
	}
	with := failover.Return{Unsteady: r.Unsteady(), Holds: r.Record.GetFeatureLevel() >= holdLevel, Draining: r.Record.GetDraining()}
	at := place.Region{Name: name, Labels: r.Record.GetDefinition().GetLabels()}
	for s := range j.Slots.All() {
		i := slices.IndexFunc(s.Former, func(f region.FormerOwner) bool { return f.Region == name })
		if s.Group != a.Group || i < 0 || a.To <= s.From || s.To <= a.From {
			continue
		}
		with := returnOf(with, j, s, &at)
		with.Stop = with.Stop || s.Former[i].Bound
		if keep, why := with.Keep(); !keep {
			return "it moved to " + s.Region + "; " + why
		}
	}
	return ""
}

// returnOf adds the facts about a job and one of its slots to the facts about a returning region.
func returnOf(with failover.Return, j *state.Job, s region.Slot, at *place.Region) failover.Return {
	with.Home, with.Done = s.Home == "", s.State == region.Done
	g := j.Place().Group(s.Group)
	if g == nil || j.Record == nil || j.Record.Stopped() || s.Desired == region.DesiredStop || s.From >= g.Count {
		with.Stopping = true
		return with
	}
	with.Stop, with.KeepReplacement, with.Allowed = g.Bound, j.Record.KeepReplacement(s.Group), g.Regions.Allows(at)
	return with
}

// reachable clears the return of slots to regions that are not connected now, so that the placer
// chooses another region for their indices. If the disconnected region still runs some of these
// indices, they return to it later, when the region is back and holds them. The lock is held.
func reachable(st *state.State, slots []region.Slot) []region.Slot {
	connected := func(name string) bool {
		r := st.Regions[name]
		return r != nil && r.Session != nil
	}
	for i := range slots {
		slots[i] = slots[i].Reachable(connected)
	}
	return slots
}
