package world

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
)

// operator maintains a world: regions and processes.
type operator struct{ *world }

// changeRegion changes the record of a region, as global/api does for an operator.
func (operator) changeRegion(t *globalTerm, name string, change func(rec *regionRecord) bool) {
	t.commit(func() []write {
		rec := t.regions[name].rec
		if !change(&rec) {
			return nil
		}
		return []write{{key: regionPrefix + name, value: rec}}
	}, nil)
}

// aRegion returns the name of a region that the active server knows; empty = none.
func (o operator) aRegion(t *globalTerm) string {
	if t == nil || len(t.names) == 0 {
		return ""
	}
	return t.names[o.rng.IntN(len(t.names))]
}

// drainRegion moves everything away from a region, and mostly ends the drain later.
func (o operator) drainRegion() {
	t := o.active()
	name := o.aRegion(t)
	if name == "" {
		return
	}
	on := !t.regions[name].rec.draining
	o.setDraining(name, on)
	if on && !o.chance(4) {
		o.in(min(o.between(10*time.Second, 100*time.Second), calm-time.Duration(o.now)), func() { o.setDraining(name, false) })
	}
}

func (o operator) setDraining(name string, on bool) {
	t := o.active()
	if t == nil || t.regions[name] == nil {
		return
	}
	if o.tracing() {
		o.tracef("operator: drain region %s: %v", name, on)
	}
	o.changeRegion(t, name, func(rec *regionRecord) bool {
		if rec.draining == on {
			return false
		}
		rec.draining = on
		rec.returning = rec.returning && !on
		return true
	})
}

// failback lets the slots return that verdicts moved away from a region, if it can have any.
func (o operator) failback() {
	t := o.active()
	if t == nil {
		return
	}
	s, _ := t.snapshot()
	for _, name := range t.names {
		r := t.regions[name]
		if r.session == nil || r.rec.draining || r.rec.returning || !t.returning(name) {
			continue
		}
		all := place.Returns(s, name)
		if !slices.ContainsFunc(all, func(r place.Return) bool { return r.Returns }) {
			continue
		}
		if o.tracing() {
			o.tracef("operator: failback %s, %d moves", name, len(all))
		}
		o.watch.stats.Failbacks++
		o.changeRegion(t, name, func(rec *regionRecord) bool {
			again := !rec.returning
			rec.returning = true
			return again
		})
	}
}
