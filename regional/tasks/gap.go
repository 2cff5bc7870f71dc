package tasks

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxGaps bounds the gaps that a history remembers. The oldest two become one.
	maxGaps = 32
	// presentAtOnce bounds the records that one transaction completes after a gap.
	presentAtOnce = 2048
)

// gap returns the gap between the position of the history and the next event of the log, or nil.
func (s *Store) gap(view *state.View) *nusav1.TaskGap {
	at, log := s.position(), view.Events()
	if at.GetCluster() != view.Cluster().ID {
		return s.firstGap(view, at.GetCluster() != "")
	}
	missed, gap := log.Gap(at.GetEvent())
	if !gap || at.GetEvent() > log.Last() {
		return nil // with a position after the last event, the log is still being read
	}
	out := &nusav1.TaskGap{Missed: missed, First: at.GetEvent() + 1, From: s.newest(), Why: "this server was behind, and the log gave it a snapshot"}
	if missed == 0 {
		out.Why = "the region's log was restored from an old copy"
	}
	out.Next, out.To = nextEvent(view, at.GetEvent())
	return out
}

// nothing reports whether a gap hides nothing.
func nothing(gap *nusav1.TaskGap) bool {
	return gap.GetNext() <= gap.GetFirst() && gap.GetFrom() == nil
}

// firstGap returns the gap before the first event of a new history. other: the history has records of
// another log.
func (s *Store) firstGap(view *state.View, other bool) *nusav1.TaskGap {
	log := view.Events()
	out := &nusav1.TaskGap{First: 1, Why: "the history of this server began later than the region's log"}
	out.Next, out.To = nextEvent(view, 0)
	out.Missed = out.Next - 1
	if other {
		out.From, out.Why = s.newest(), "the region has another log now"
	} else if log.Oldest() == 1 && view.Cluster().FeatureLevel >= state.TaskLevel {
		out.Next, out.Missed = 1, 0 // the log has every event
	}
	return out
}

// nextEvent returns the number and the time of the first event after n.
func nextEvent(view *state.View, n uint64) (uint64, *timestamppb.Timestamp) {
	for number, e := range view.Events().After(n) {
		return number, timestamp(e.UnixNano)
	}
	return view.Events().Last() + 1, timestamppb.Now()
}

// newest returns when the newest record was placed.
func (s *Store) newest() (at *timestamppb.Timestamp) {
	_ = s.view(func() error {
		newest := int64(-1)
		if n := len(s.recent.order); n > 0 {
			newest = s.recent.order[n-1].key.Placed
		}
		for _, g := range s.segments {
			newest = max(newest, g.Greatest.Placed)
		}
		if newest >= 0 {
			at = timestamp(newest)
		}
		return nil
	})
	return at
}

// note stores a gap, and goes on after it.
func (s *Store) note(cluster string, gap *nusav1.TaskGap) error {
	return s.update(func(b *batch) error {
		b.at.Cluster, b.at.Event = cluster, gap.GetNext()-1
		if !nothing(gap) {
			addGap(b.at, gap)
		}
		return nil
	})
}

// addGap adds a gap, unless it is there for the same reason. Of too many, the oldest two become one.
func addGap(at *nusav1.CopyTasksResponse, gap *nusav1.TaskGap) {
	for _, g := range at.Gaps {
		if g.GetFirst() == gap.GetFirst() && g.GetNext() == gap.GetNext() && g.GetWhy() == gap.GetWhy() {
			g.To = gap.To
			if gap.GetFrom() == nil || g.GetFrom() != nil && before(gap.GetFrom(), g.GetFrom()) {
				g.From = gap.From
			}
			return
		}
	}
	at.Gaps = append(at.Gaps, gap)
	if len(at.Gaps) > maxGaps {
		first, second := at.Gaps[0], at.Gaps[1]
		first.To, first.Next, first.Missed = second.To, max(first.Next, second.Next), 0
		at.Gaps = append(at.Gaps[:1], at.Gaps[2:]...)
	}
}

// present completes the history after a gap: records of allocations that the log's state has get their
// present state, and new ones are made. Records without an end whose allocation is gone end as unknown.
func (s *Store) present(from source, gap *nusav1.TaskGap) error {
	var part []*state.Alloc
	write := func() error {
		defer func() { part = part[:0] }()
		return s.update(func(b *batch) error {
			for _, a := range part {
				if err := b.present(from, a); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for a := range from.view.Allocs() {
		part = append(part, a)
		if len(part) == presentAtOnce {
			if err := write(); err != nil {
				return err
			}
		}
	}
	if err := write(); err != nil {
		return err
	}
	return s.endGone(from.view, gap)
}

func (b *batch) present(from source, a *state.Alloc) error {
	id, ok := taskpage.ParseID(a.ID)
	if !ok {
		return nil
	}
	have, rec, err := b.entry(id)
	if err != nil {
		return err
	}
	if have == nil {
		if err := b.begin(from, id, 0, &state.Event{
			Kind: state.EventInstanceRunning, UnixNano: a.CreatedUnixNano, ID: a.ID, Namespace: a.Namespace, Job: a.Job, Local: a.Local,
			Group: a.Group, Index: a.Index, Version: a.JobVersion, Node: a.NodeName,
		}, nil); err != nil {
			return err
		}
		have = b.recent.byID[id]
	}
	x, changed := from.present(have, a)
	if !changed {
		return nil
	}
	if err := b.again(have, rec); err != nil {
		return err
	}
	return b.add(from, have, 0, &x)
}

// endGone ends the records without an end whose allocation the log's state does not have.
func (s *Store) endGone(view *state.View, gap *nusav1.TaskGap) error {
	var gone []*entry
	if err := s.view(func() error {
		for _, e := range s.recent.order {
			if e.ended == 0 {
				if _, ok := view.Alloc(taskpage.FormatID(e.key.ID[:])); !ok {
					gone = append(gone, e)
				}
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for part := range slices.Chunk(gone, presentAtOnce) {
		if err := s.update(func(b *batch) error {
			for _, e := range part {
				x := change{time: max(gap.GetTo().AsTime().UnixNano(), e.last+1), message: "the end was missed: " + gap.GetWhy()}
				if err := b.add(source{view: view}, b.recent.byID[e.key.ID], 0, &x); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
