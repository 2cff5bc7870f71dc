package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/global/workflows/semaphore"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// semaphoreKind is that of the keys of the records of semaphores.
const semaphoreKind = "semaphores"

// semaphores are those of a namespace. Their units are in state.Templates. Who holds them follows from the
// records of steps, and from the grants that are not stored yet as the start of a step.
type semaphores struct {
	holds map[semaphore.Key]hold
	// held has the units that are held of each semaphore, and holders counts the items that do.
	held, holders map[string]int
	// granted is how many holds are not stored.
	granted int
	queue   semaphore.Queue
}

// hold is what an item of a step holds.
type hold struct {
	needs []semaphore.Need
	since time.Time
	// stored: the record of the item says that it is active. Otherwise it may begin.
	stored bool
}

func (x *semaphores) take(k semaphore.Key, h hold) {
	if old, is := x.holds[k]; is {
		x.count(old, -1)
	}
	x.holds[k] = h
	x.count(h, 1)
}

func (x *semaphores) release(k semaphore.Key) {
	if old, is := x.holds[k]; is {
		x.count(old, -1)
		delete(x.holds, k)
	}
}

func (x *semaphores) count(h hold, n int) {
	x.granted += n * one(!h.stored)
	for _, of := range h.needs {
		x.held[of.Name] += n * of.Units
		x.holders[of.Name] += n
		if x.holders[of.Name] == 0 {
			delete(x.held, of.Name)
			delete(x.holders, of.Name)
		}
	}
}

// semaphoresOf returns the semaphores of a namespace. The lock is held.
func semaphoresOf(b *Book, namespace string) *semaphores {
	x := b.sems[namespace]
	if x == nil {
		x = &semaphores{holds: map[semaphore.Key]hold{}, held: map[string]int{}, holders: map[string]int{}}
		b.sems[namespace] = x
	}
	return x
}

// unitsOf returns the units of a semaphore. 0: there is none. The lock is held.
func unitsOf(b *Book, namespace, name string) int {
	return int(b.st.Templates.Semaphores[state.JobKey{Namespace: namespace, Name: name}])
}

// applySemaphore notes a stored record. The lock is held.
func applySemaphore(b *Book, name string, m proto.Message) {
	namespace, id, _ := strings.Cut(name, "/")
	k := state.JobKey{Namespace: namespace, Name: id}
	rec, _ := m.(*nusav1.SemaphoreRecord)
	if rec == nil {
		delete(b.st.Templates.Semaphores, k)
	} else {
		b.st.Templates.Semaphores[k] = rec.GetUnits()
	}
	grantUnits(b, namespace)
}

// needsOf returns what a step takes of semaphores.
func needsOf(s *nusav1.Step) (out []semaphore.Need) {
	for _, of := range s.GetSemaphores() {
		out = append(out, semaphore.Need{Name: of.GetName(), Units: max(1, int(of.GetUnits()))})
	}
	return out
}

func keyOf(r *run, i, item int) semaphore.Key {
	return semaphore.Key{Run: r.key.Name, Step: i, Item: item}
}

// noteHolds notes what an item of a step, or all of them, holds by its record. The lock is held.
func noteHolds(b *Book, r *run, i, of int) {
	if len(r.def.needs[i]) == 0 {
		return
	}
	first, last := of, of
	if of == wholeItem {
		first, last = 0, len(r.snap.Steps[i].Items)-1
	}
	released := false
	for item := first; item <= last && item < len(r.snap.Steps[i].Items); item++ {
		released = noteHold(semaphoresOf(b, r.key.Namespace), r, i, item) || released
	}
	if released {
		grantUnits(b, r.key.Namespace)
	}
}

// noteHold notes what an item holds by its record. It reports whether it gives units back. The lock is held.
func noteHold(x *semaphores, r *run, i, item int) (released bool) {
	it, k := r.snap.Steps[i].Items[item], keyOf(r, i, item)
	active, _ := flow.Count(it)
	old, has := x.holds[k]
	switch {
	case active > 0:
		x.queue.Remove(k)
		x.take(k, hold{r.def.needs[i], r.recs[i][item].GetBegan().AsTime(), true})
	case has && (old.stored || it.Stage == flow.Done):
		x.release(k)
		return true
	case it.Stage == flow.Done:
		x.queue.Remove(k)
	}
	return false
}

// leaveQueues ends the waits of a run, and gives back what it has not begun to use. The lock is held.
func leaveQueues(b *Book, r *run) {
	x := b.sems[r.key.Namespace]
	if x == nil || !r.def.takes {
		return
	}
	for i, needs := range r.def.needs {
		for item := range r.snap.Steps[i].Items {
			k := keyOf(r, i, item)
			if len(needs) == 0 {
				continue
			}
			if x.queue.Remove(k); !x.holds[k].stored || !r.live() {
				x.release(k)
			}
		}
	}
	grantUnits(b, r.key.Namespace)
}

// hasUnits reports whether an item has the units that it needs. The lock is held.
func hasUnits(b *Book, r *run, i, item int) bool {
	x := b.sems[r.key.Namespace]
	if x == nil {
		return false
	}
	_, has := x.holds[keyOf(r, i, item)]
	return has
}

// queueWaits lets items wait for semaphores as a plan says, and gives back what the plan does not use. batch are the
// steps that the plan looked at, and again those that are looked at again. The lock is held.
func queueWaits(b *Book, r *run, batch []int, p *flow.Plan, again []int) {
	if !r.def.takes {
		return
	}
	x := semaphoresOf(b, r.key.Namespace)
	started := map[[2]int]bool{}
	for _, a := range p.Actions {
		started[[2]int{a.Step, a.Item}] = a.Do == flow.Start
	}
	for _, i := range batch {
		if x.granted == 0 || len(r.def.needs[i]) == 0 || slices.Contains(again, i) || slices.Contains(p.Left, i) {
			continue
		}
		for item := range r.snap.Steps[i].Items {
			k := keyOf(r, i, item)
			if h, has := x.holds[k]; has && !h.stored && !started[[2]int{i, item}] {
				x.release(k)
			}
		}
	}
	since := map[int]time.Time{}
	for _, w := range p.Waits {
		k := keyOf(r, w[0], w[1])
		if x.queue.Has(k) {
			continue
		}
		if _, known := since[w[0]]; !known {
			since[w[0]] = readySince(r, w[0])
		}
		at := since[w[0]]
		if it := r.snap.Steps[w[0]].Items[w[1]]; it.Stage == flow.Backoff && it.Until.After(at) {
			at = it.Until
		}
		x.queue.Add(semaphore.Waiter{Key: k, Since: at, Needs: r.def.needs[w[0]]})
	}
	grantUnits(b, r.key.Namespace)
}

// grantUnits gives units to the items that have waited longest. Their runs are looked at. The lock is held.
func grantUnits(b *Book, namespace string) {
	x := b.sems[namespace]
	if x == nil || x.queue.Len() == 0 {
		return
	}
	now := time.Now()
	for _, w := range x.queue.Grant(func(name string) (int, int) { return unitsOf(b, namespace, name), x.held[name] }) {
		r := b.runs[state.JobKey{Namespace: namespace, Name: w.Run}]
		if r == nil {
			continue
		}
		x.take(w.Key, hold{w.Needs, now, false})
		r.touched.add(w.Step)
		b.clock.Sooner(r, now)
		b.st.Templates.StepWake.Notify()
	}
}

// readySince returns when a step became ready to start, as far as the records say: when the last of the steps on which
// it depends ended. So the order of those that wait survives an election.
func readySince(r *run, i int) time.Time {
	since := r.rec.GetRun().GetBegan().AsTime()
	later := func(rec *nusav1.WorkflowStepRecord) {
		if at := rec.GetEnded(); at != nil && at.AsTime().After(since) {
			since = at.AsTime()
		}
	}
	for _, j := range r.def.graph.After[i] {
		later(r.whole[j])
		for _, rec := range r.recs[j] {
			later(rec)
		}
	}
	return since
}

// waitsFor says what an item waits for. Empty: for no semaphore. The lock is held.
func waitsFor(b *Book, r *run, i, item int) string {
	x := b.sems[r.key.Namespace]
	if x == nil || !x.queue.Has(keyOf(r, i, item)) {
		return ""
	}
	return lacks(b, r.key.Namespace, x, r.def.needs[i])
}

// lacks says which semaphore does not have the units that an item needs. The lock is held.
func lacks(b *Book, namespace string, x *semaphores, needs []semaphore.Need) string {
	for _, n := range needs {
		units := unitsOf(b, namespace, n.Name)
		switch {
		case units == 0:
			return fmt.Sprintf("semaphore %s does not exist: nusa semaphore set %s --units N", n.Name, n.Name)
		case n.Units > units:
			return fmt.Sprintf("needs %d units of semaphore %s, which has %d: nusa semaphore set %s --units N", n.Units, n.Name, units, n.Name)
		}
	}
	for _, n := range needs {
		if units := unitsOf(b, namespace, n.Name); x.held[n.Name]+n.Units > units {
			return fmt.Sprintf("waits for %d of semaphore %s: %d of %d units are held", n.Units, n.Name, x.held[n.Name], units)
		}
	}
	return "waits for semaphore " + needs[0].Name + ", behind older steps"
}

// showSemaphore describes a semaphore. all: with its first holders and waiters. The lock is held.
func showSemaphore(b *Book, k state.JobKey, all bool) *nusav1.Semaphore {
	out := &nusav1.Semaphore{Namespace: k.Namespace, Name: k.Name, Units: b.st.Templates.Semaphores[k]}
	x := b.sems[k.Namespace]
	if x == nil {
		return out
	}
	out.Held, out.Holders, out.Waiters = int64(x.held[k.Name]), int32(x.holders[k.Name]), int32(x.queue.Waiting(k.Name))
	if !all {
		return out
	}
	for key, h := range x.holds {
		if s := semaphoreStep(b, k, key, h.needs, h.since); s != nil {
			out.Holding = append(out.Holding, s)
		}
	}
	slices.SortFunc(out.Holding, func(one, two *nusav1.SemaphoreStep) int {
		return cmp.Or(one.GetSince().AsTime().Compare(two.GetSince().AsTime()), cmp.Compare(one.GetRun(), two.GetRun()), cmp.Compare(one.GetStep(), two.GetStep()), cmp.Compare(one.GetIndex(), two.GetIndex()))
	})
	out.Holding = out.GetHolding()[:min(len(out.GetHolding()), mostShown)]
	for w := range x.queue.Of(k.Name) {
		if len(out.GetWaiting()) == mostShown {
			break
		}
		if s := semaphoreStep(b, k, w.Key, w.Needs, w.Since); s != nil {
			s.Message = lacks(b, k.Namespace, x, w.Needs)
			out.Waiting = append(out.Waiting, s)
		}
	}
	return out
}
