package placer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
)

// leaves reports whether a job has slots in a draining region, or slots that may return to the
// region from which a verdict moved them. The lock is held.
func leaves(st *state.State, j *state.Job) bool {
	for s := range j.Slots.All() {
		if s.Desired != region.DesiredRun || s.State == region.Done {
			continue
		}
		if at := st.Regions[s.Region]; at != nil && at.Record.GetDraining() {
			return true
		}
		if s.Home != "" && mayReturn(st, j, s, st.Clock()) {
			return true
		}
	}
	return false
}

// mayReturn reports whether a slot may return now: its failback is due, or an operator lets it
// return.
func mayReturn(st *state.State, j *state.Job, s region.Slot, now time.Duration) bool {
	home, g := st.Regions[s.Home], j.Place().Group(s.Group)
	if home == nil || home.Session == nil || g == nil || g.OnDisconnect.Failback.Mode == place.FailbackNever {
		return false
	}
	back := g.OnDisconnect.Failback
	return home.Record.GetReturning() || back.Mode == place.FailbackAuto && home.Life.ConnectedFor(now) >= back.After
}

// followMoves makes the jobs pending that must leave a region or may return to one. It also updates
// the progress of each drain. It reports whether an operator lets slots return to some region.
//
// followMoves is called once in each report interval, and when an operator begins a move. It skips
// a region whose slots have not changed, except for the jobs that wait there. The lock is held.
func followMoves(p *Placer) (returning bool) {
	st := p.st
	st.MovesBegan = false
	countDrains(p)
	for _, d := range p.drains {
		for k := range d.leave {
			st.Pend(k)
		}
	}
	for _, r := range st.Regions {
		returning = returning || r.Record.GetReturning()
	}
	for name, jobs := range st.NotHome {
		followReturns(st, name, jobs)
	}
	return returning
}

// CountDrains updates the progress of all drains.
func CountDrains(p *Placer) {
	p.st.Lock()
	defer p.st.Unlock()
	countDrains(p)
}

// countDrains is CountDrains with the lock held.
func countDrains(p *Placer) {
	st := p.st
	for name, r := range st.Regions {
		if !r.Record.GetDraining() {
			r.Drain, r.DrainAt = "", 0
			delete(p.drains, name)
			continue
		}
		if d := p.drains[name]; d != nil && d.at == r.Changes {
			continue
		}
		d := progressOf(st, r)
		p.drains[name] = d
		if d.instances != r.DrainLeft || r.DrainAt == 0 {
			r.DrainLeft, r.DrainAt = d.instances, st.Clock()
		}
		if text := d.String(); r.Drain != text {
			r.Drain, r.Stamp = text, st.Notify()
		}
	}
	for name := range p.drains {
		if st.Regions[name] == nil {
			delete(p.drains, name)
		}
	}
}

// followReturns makes the jobs pending that may return to a region now. It also counts the
// instances that wait for an operator.
func followReturns(st *state.State, name string, jobs state.JobSet) {
	home := st.Regions[name]
	if home == nil || home.Session == nil {
		return
	}
	now, review := st.Clock(), 0
	for k := range jobs {
		some, j := false, st.Jobs[k]
		if j != nil {
			for s := range j.Slots.All() {
				some = some || s.Home == name
				if s.Home != name || j.Record == nil || s.Desired != region.DesiredRun || s.State == region.Done {
					continue
				}
				if mayReturn(st, j, s, now) {
					st.Pend(k)
				} else if j.WaitsForReview(s) {
					review += s.Count()
				}
			}
		}
		if !some {
			delete(jobs, k)
		}
	}
	if len(jobs) == 0 {
		delete(st.NotHome, name)
	}
	if home.Review != review {
		home.Review, home.Stamp = review, st.Notify()
		for k := range jobs {
			st.JobChanged(st.Jobs[k])
		}
	}
}

// drainProgress counts what is left in a draining region.
type drainProgress struct {
	// at is the value of Region.Changes at the time of the count.
	at                      uint64
	instances, slots, ended int
	// waits is the first group, by name, that cannot leave, and why.
	waits string
	// leave are the jobs with slots that must leave.
	leave state.JobSet
}

func progressOf(st *state.State, r *state.Region) *drainProgress {
	d := &drainProgress{at: r.Changes, leave: state.JobSet{}}
	st.EachSlot(r, d.add)
	return d
}

func (d *drainProgress) add(j *state.Job, s region.Slot) {
	if j.Record == nil {
		return
	}
	if s.State == region.Done {
		d.ended++
		return
	}
	d.slots++
	d.instances += s.Count()
	if s.Desired == region.DesiredRun {
		d.leave[j.Key] = struct{}{}
	}
	for _, l := range j.Notes().Leaves {
		if text := fmt.Sprintf("%s/%s/%s: %s", l.Namespace, l.Job, l.Group, l.Why); l.Region == s.Region && l.Left > 0 && (d.waits == "" || text < d.waits) {
			d.waits = text
		}
	}
}

// String returns the progress in one line.
func (d *drainProgress) String() string {
	switch {
	case d.slots == 0 && d.ended == 0:
		return "drained: nothing is left"
	case d.slots == 0:
		return "drained: only slots of ended instances are left"
	}
	text := fmt.Sprintf("draining: %d instances are left", d.instances)
	if d.instances == 1 {
		text = "draining: 1 instance is left"
	}
	if d.waits != "" {
		text += "; " + d.waits
	}
	return text
}

// recordLeaves stores what a plan does with the slots of the planned jobs in draining regions. The
// lock is held.
func recordLeaves(st *state.State, plan place.Plan, jobs map[state.JobKey]seen) {
	all := map[state.JobKey][]place.Leave{}
	for _, l := range plan.Leaves {
		k := state.JobKey{Namespace: l.Namespace, Name: l.Job}
		all[k] = append(all[k], l)
	}
	for k := range jobs {
		if j := st.Jobs[k]; j != nil && !slices.Equal(j.Notes().Leaves, all[k]) {
			j.EditNotes().Leaves = all[k]
			st.SlotsChanged(j)
		}
	}
}

// endReturns ends each failback that operators began, when no slot is left that may return, or when
// the region is lost again.
func endReturns(ctx context.Context, p *Placer) error {
	p.st.Lock()
	var over []string
	for _, name := range slices.Sorted(maps.Keys(p.st.Regions)) {
		r := p.st.Regions[name]
		if r.Record.GetReturning() && (r.Record.GetLost() != nil || !returning(p.st, name)) {
			over = append(over, name)
		}
	}
	p.st.Unlock()
	for _, name := range over {
		_, err := p.Commit.Do(ctx, func(t *state.Tx) error {
			old, _ := t.Region(name)
			if old == nil || !old.GetReturning() {
				return nil
			}
			next := proto.CloneOf(old)
			next.Returning = false
			t.Event("region.failback", name, "ended: nothing is left that may return")
			return t.PutRegion(name, next)
		})
		if err != nil {
			return fmt.Errorf("end the failback of region %s: %w", name, err)
		}
	}
	return nil
}

// returning reports whether slots are returning to a region, or may return to it. The lock is held.
func returning(st *state.State, name string) bool {
	for k := range st.Moved {
		j := st.Jobs[k]
		if j.Record.Stopped() {
			continue
		}
		for s := range j.Slots.All() {
			if s.ReturnTo == name {
				return true
			}
			g := j.Place().Group(s.Group)
			may := g != nil && j.Place().Type != place.Batch && g.OnDisconnect.Failback.Mode != place.FailbackNever
			if s.Home == name && may && s.State != region.Done && s.Desired != region.DesiredStop {
				return true
			}
		}
	}
	return false
}

// Returns lists the slots that an operator can let return to a region, and why others stay.
func Returns(st *state.State, name string) []place.Return {
	st.Lock()
	snapshot := regionsSnapshot(st)
	for k := range st.Moved {
		if j := st.Jobs[k]; j != nil && j.Record != nil {
			snapshot.Jobs = append(snapshot.Jobs, j.ToPlace(st.Sight()))
		}
	}
	slices.SortFunc(snapshot.Jobs, func(a, b place.Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Name, b.Name))
	})
	snapshot.Terse, snapshot.Origins = true, st.Origins.Serving(snapshot.Jobs)
	st.Unlock()
	return place.Returns(snapshot, name)
}
