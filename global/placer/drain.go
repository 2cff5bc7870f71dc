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

// leaves reports whether a job has slots that a drain moves away, or that may return to the
// region from which a verdict moved them. The lock is held.
func leaves(st *state.State, j *state.Job) bool {
	for _, s := range j.Slots {
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

// mayReturn reports whether a slot may return by itself now, or an operator lets it.
func mayReturn(st *state.State, j *state.Job, s region.Slot, now time.Duration) bool {
	home, g := st.Regions[s.Home], j.PlaceJob.Group(s.Group)
	if home == nil || home.Session == nil || g == nil || g.OnDisconnect.Failback.Mode == place.FailbackNever {
		return false
	}
	back := g.OnDisconnect.Failback
	return home.Record.GetReturning() || back.Mode == place.FailbackAuto && home.Life.ConnectedFor(now) >= back.After
}

// followMoves makes the jobs pending that have to leave a region or may return to one, and
// says how far each drain is. It returns whether an operator moves anything. It is called
// once in each report interval. The lock is held.
func followMoves(st *state.State) (moving bool) {
	draining := map[string]*drainProgress{}
	for name, r := range st.Regions {
		moving = moving || r.Record.GetDraining() || r.Record.GetReturning()
		if r.Record.GetDraining() {
			draining[name] = &drainProgress{}
		} else {
			r.Drain = ""
		}
	}
	jobs := st.Moved
	if len(draining) > 0 {
		jobs = state.JobSet{}
		for k := range st.Jobs {
			jobs[k] = struct{}{}
		}
	}
	for k := range jobs {
		j := st.Jobs[k]
		if j == nil || j.Record == nil {
			continue
		}
		for _, s := range j.Slots {
			if d := draining[s.Region]; d != nil {
				d.add(j, s)
			}
		}
		if leaves(st, j) {
			st.Pending[k] = struct{}{}
		}
	}
	for name, d := range draining {
		if text := d.String(); st.Regions[name].Drain != text {
			st.Regions[name].Drain, st.Regions[name].Stamp = text, st.Notify()
		}
	}
	return moving
}

// drainProgress counts what is left in a draining region.
type drainProgress struct {
	instances, slots, ended int
	// waits is the first group, by name, that cannot leave, with the reason.
	waits string
}

func (d *drainProgress) add(j *state.Job, s region.Slot) {
	if s.State == region.Done {
		d.ended++
		return
	}
	d.slots++
	d.instances += s.Count()
	for _, l := range j.Leaves {
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
	case d.waits != "":
		return fmt.Sprintf("drains: %d instances are left; %s", d.instances, d.waits)
	}
	return fmt.Sprintf("drains: %d instances are left", d.instances)
}

// recordLeaves stores how the groups of the planned jobs leave draining regions. The lock is
// held.
func recordLeaves(st *state.State, plan place.Plan, jobs map[state.JobKey]seen) {
	all := map[state.JobKey][]place.Leave{}
	for _, l := range plan.Leaves {
		k := state.JobKey{Namespace: l.Namespace, Name: l.Job}
		all[k] = append(all[k], l)
	}
	for k := range jobs {
		if j := st.Jobs[k]; j != nil {
			j.Leaves = all[k]
		}
	}
}

// endReturns ends what operators began with a failback: once nothing is left that may
// return, and when the region is lost again.
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
			return t.PutRegion(name, next)
		})
		if err != nil {
			return fmt.Errorf("end the failback of region %s: %w", name, err)
		}
		p.st.Events.Add("region.failback", name, "ended: nothing is left that may return")
	}
	return nil
}

// returning reports whether slots return to a region or may do so. The lock is held.
func returning(st *state.State, name string) bool {
	for k := range st.Moved {
		j := st.Jobs[k]
		if j.PlaceJob.Stopped {
			continue
		}
		for _, s := range j.Slots {
			if s.ReturnTo == name {
				return true
			}
			g := j.PlaceJob.Group(s.Group)
			may := g != nil && j.PlaceJob.Type != place.Batch && g.OnDisconnect.Failback.Mode != place.FailbackNever
			if s.Home == name && may && s.State != region.Done && s.Desired != region.DesiredStop {
				return true
			}
		}
	}
	return false
}

// Returns says which slots an operator can let return to a region, and why others stay.
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
