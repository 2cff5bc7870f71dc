package sched

import "github.com/nusa-scheduler/nusa/regional/state"

// output writes the results of the decision about one group into the plan.
type output struct {
	key    state.GroupKey
	plan   *Plan
	wakeAt *int64 // when the next plan is due; 0: never
	waits  []Waiting
	// stopped are the ids of the allocations that this plan stops.
	stopped map[string]bool
}

// stop adds the stop of an allocation on a connected node.
func (o *output) stop(a *state.Alloc, reason state.Reason, message string) {
	if a.Desired == state.Run {
		o.addStop(a, reason, message, false)
	}
}

// giveUp adds the end of an allocation on a lost node: it becomes lost at once.
func (o *output) giveUp(a *state.Alloc, reason state.Reason, message string) {
	o.addStop(a, reason, message, true)
}

func (o *output) addStop(a *state.Alloc, reason state.Reason, message string, giveUp bool) {
	if o.stopped == nil {
		o.stopped = map[string]bool{}
	}
	o.stopped[a.ID] = true
	o.plan.Stops = append(o.plan.Stops, Stop{
		AllocID: a.ID, Key: o.key, Index: a.Index, NodeName: a.NodeName, Reason: reason, Message: message, GiveUp: giveUp,
	})
}

// wake makes a plan due at the given time, because something changes then without an event.
func (o *output) wake(at int64) { wakeEarlier(o.wakeAt, at) }

func wakeEarlier(earliest *int64, at int64) {
	if *earliest == 0 || at < *earliest {
		*earliest = at
	}
}

// wait adds an index that must wait until a time. until is 0 if the time is not known.
func (o *output) wait(index int32, reason state.Reason, until int64) {
	if until > 0 {
		o.wake(until)
	}
	for i := range o.waits {
		w := &o.waits[i]
		if w.Reason == reason {
			w.Ranges = addIndex(w.Ranges, index)
			if until > 0 && (w.UntilUnixNano == 0 || until < w.UntilUnixNano) {
				w.UntilUnixNano = until
			}
			return
		}
	}
	o.waits = append(o.waits, Waiting{o.key, []Range{{index, index + 1}}, reason, until})
}

// waitRange adds the indices from ≤ i < to that wait for an event.
func (o *output) waitRange(from, to int32, reason state.Reason) {
	for i := range o.waits {
		w := &o.waits[i]
		if w.Reason != reason {
			continue
		}
		if n := len(w.Ranges); n > 0 && w.Ranges[n-1].To == from {
			w.Ranges[n-1].To = to
		} else {
			w.Ranges = append(w.Ranges, Range{from, to})
		}
		return
	}
	o.waits = append(o.waits, Waiting{o.key, []Range{{from, to}}, reason, 0})
}

// unplaced adds instances of a slot for which no node was found.
func (o *output) unplaced(u Unplaced, s *state.Slot, reason state.Reason, message string) {
	u.Key, u.JobVersion, u.Generation = o.key, s.JobVersion, s.Generation
	u.Reason, u.Message = reason, message
	o.plan.Unplaced = append(o.plan.Unplaced, u)
}
