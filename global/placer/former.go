package placer

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
)

// formerPerCommit bounds the changes of one request, so that they fit into one transaction.
const formerPerCommit = 100

// forgetFormer drops two kinds of former owners from the slots: regions that no longer exist, and
// regions where, as an operator stated, nothing runs.
func forgetFormer(ctx context.Context, p *Placer) error {
	p.st.Lock()
	changes := gone(p.st)
	p.st.Unlock()
	for batch := range slices.Chunk(changes, formerPerCommit) {
		_, err := p.Commit.Do(ctx, func(t *state.Tx) error {
			for _, c := range batch {
				one := []region.Change{c}
				if t.Stale(one) {
					continue // the change of the slot has woken the placer, so the next plan decides again
				}
				if err := t.ChangeSlots(one); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("forget former owners: %w", err)
		}
	}
	return nil
}

// gone returns the changes that drop former owners with nothing to confirm. It also removes the
// jobs without moved slots from State.Moved. The lock is held.
func gone(st *state.State) (out []region.Change) {
	isGone := func(name string) bool {
		r := st.Regions[name]
		return r == nil || r.Record.GetLost().GetNothingRuns()
	}
	for k := range st.Moved {
		moved := false
		for s := range st.Jobs[k].Slots.All() {
			moved = moved || state.IsMoved(&s)
			back := s.ReturnTo
			if back != "" && isGone(back) {
				s.ReturnTo = ""
			}
			c := s.Without(func(f region.FormerOwner) bool { return isGone(f.Region) })
			if c.Delete || len(c.Slot.Former) < len(s.Former) || back != s.ReturnTo {
				out = append(out, c)
			}
		}
		if !moved {
			delete(st.Moved, k)
		}
	}
	slices.SortFunc(out, func(a, b region.Change) int { return cmp.Compare(a.Slot.Key(), b.Slot.Key()) })
	return out
}
