package accept

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

// held returns the answers about a slot that now belongs to another region: Kept for
// instances that still run in this region, Done for instances that completed here, Revoked
// for instances that have nothing left here. It returns no answer about an instance that is
// starting or stopping, or that is on a disconnected node.
func held(view *state.View, s *state.Slot) []state.Answer {
	var out []state.Answer
	last := s.From - 1
	add := func(i int32, st state.SlotState) {
		if k := len(out) - 1; k >= 0 && out[k].To == i && out[k].State == st {
			out[k].To++
			return
		}
		out = append(out, answer(s, i, i+1, st))
	}
	// An instance without a record has no allocation in this region.
	absent := func(to int32) {
		for i := last + 1; i < to; i++ {
			add(i, state.SlotRevoked)
		}
		last = to
	}
	for in := range view.Instances(s.Key()) {
		if in.Index < s.From || in.Index >= s.To {
			continue
		}
		absent(in.Index)
		if st := heldState(view, s, in); st != 0 {
			add(in.Index, st)
		}
	}
	absent(s.To)
	return out
}

// heldState returns the answer about one held instance, 0 for none yet. An instance of
// another run of the job must end.
func heldState(view *state.View, s *state.Slot, in *state.Instance) state.SlotState {
	ends := false
	for a := range view.InstanceAllocs(s.Key(), in.Index) {
		switch {
		case unboundOnLostNode(view, s, a):
			ends = true
		case !a.Live():
		case a.State == state.Running && a.Desired == state.Run && !a.Disconnected && s.OfRun(a.Run):
			return state.SlotKept
		default:
			ends = true
		}
	}
	switch {
	case ends:
		return 0
	case in.CompletedIn(s.Run):
		return state.SlotDone
	}
	return state.SlotRevoked
}
