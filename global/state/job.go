package state

import (
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Job is a job with its slots and what regions report about it. The state's
// lock guards it.
type Job struct {
	Key JobKey
	// Record is nil when the job is gone and only slots of it remain.
	Record   *Record
	Revision int64
	// PlaceJob is the job as the placer sees it, without slots.
	PlaceJob  place.Job
	Slots     map[string]region.Slot // by Slot.Key
	Summaries map[string]*nusav1.JobSummary
	// Result is how a run of the job ended, as stored.
	Result *nusav1.ResultRecord
	// Healthy is the latest version that ran with all instances, as stored.
	Healthy *Record
	// Changes counts the durable changes of the job and its slots.
	Changes uint64
	// Stamp is the number of the latest change that a watch shows.
	Stamp uint64
	// watched tells the watches of the job that it has changed or is gone; nil without
	// watches.
	watched *notify.Signal

	// Decisions are the latest decisions of the placer, by group.
	Decisions map[string]Decision
	// Breaches are the near rules that are broken.
	Breaches []place.Breach
	// unplaced says since when groups have instances without a region.
	unplaced map[string]*unplacedGroup
	// released are the instances that regions gave up lately, oldest first.
	released []releasedInstances
	// Stays says why slots of lost regions that are due have not moved, by Slot.Key, as the
	// latest plan said.
	Stays map[string]string
	// RolloutWaits says why a new version has not reached a region, by region,
	// as the latest plan said.
	RolloutWaits map[string]string
	// Moves are the decisions of the latest plan, made at MovesAt, about
	// breaches that are sustained.
	Moves   []place.Move
	MovesAt time.Duration
	// Leaves say how the latest plan moves instances out of draining regions.
	Leaves []place.Leave

	// weight is what the job counts in Room.
	weight int64
	// demand is what each group adds to State.Demand; empty for a stopped job.
	demand []groupDemand
}

// Decision is the placer's latest decision about a group. A decision that
// placed instances is held until the next one, so that people can ask about it.
type Decision struct {
	place.GroupExplanation
	At time.Duration
	// Full says that the decision explains every region.
	Full bool
}

// Watched returns a channel that is closed at the next change of what a watch of the job
// shows, and when the job is gone. The lock is held.
func (j *Job) Watched() <-chan struct{} {
	if j.watched == nil {
		j.watched = &notify.Signal{}
	}
	return j.watched.C()
}

// changed notes the number of a change and wakes the watches of the job. The lock is held.
func (j *Job) changed(stamp uint64) {
	j.Stamp = stamp
	if j.watched != nil {
		j.watched.Notify()
		j.watched = nil
	}
}

// keepDecisions keeps the decisions about groups that a new record still has,
// because they explain where the present instances are. The reasons why instances
// wait are decided again.
func (j *Job) keepDecisions(rec *Record) {
	for name, d := range j.Decisions {
		if !rec.HasGroup(name) {
			delete(j.Decisions, name)
			continue
		}
		d.Pending = nil
		j.Decisions[name] = d
	}
}

// needsPlacer says whether a slot differs from what the job's present version
// wants.
func (j *Job) needsPlacer(s region.Slot) bool {
	if j.Record == nil || j.Record.Stopped() {
		return s.Desired == region.DesiredRun
	}
	return s.JobVersion != j.Record.Version() || !s.OfRun(j.Record.Run(j.Revision))
}

// RunsAt says whether a region owns instances of a group.
func (j *Job) RunsAt(group, name string) bool {
	for _, s := range j.Slots {
		if s.Group == group && s.Region == name {
			return true
		}
	}
	return false
}

// touches returns the regions that own a slot of the job, or may still run one as its former
// owner, each once.
func (j *Job) touches() (names []string) {
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, s := range j.Slots {
		add(s.Region)
		for _, f := range s.Former {
			add(f.Region)
		}
	}
	return names
}

// SortedSlots returns the slots in order of group, first index and region.
func (j *Job) SortedSlots() []region.Slot {
	out := make([]region.Slot, 0, len(j.Slots))
	for _, s := range j.Slots {
		out = append(out, s)
	}
	SortSlots(out)
	return out
}

// SortSlots sorts slots by group, first index and region.
func SortSlots(slots []region.Slot) {
	slices.SortFunc(slots, func(a, b region.Slot) int {
		if c := strings.Compare(a.Group, b.Group); c != 0 {
			return c
		}
		if a.From != b.From {
			return a.From - b.From
		}
		return strings.Compare(a.Region, b.Region)
	})
}

// owns says whether a region still owns the reported instances in the same
// generation of their slot.
func (j *Job) owns(from string, a *nusav1.DisconnectedInstances) bool {
	for _, s := range j.Slots {
		if s.Region == from && s.Group == a.GetGroup() && s.Generation == a.GetGeneration() && !s.System &&
			int(a.GetFrom()) >= s.From && int(a.GetTo()) <= s.To && a.GetFrom() < a.GetTo() {
			return true
		}
	}
	return false
}
