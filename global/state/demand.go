package state

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/global/place"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxSubscriptions bounds the asks for which a report has an exact count, as in
// federation.proto.
const maxSubscriptions = 256

// Demand is the distinct asks of the groups of all jobs. The state's lock
// guards it.
type Demand struct {
	// subscribed are the hashes of the asks that regions count exactly, as they
	// were last chosen.
	subscribed []uint64

	asks map[uint64]*ask // by hash
	// waiting are the hashes of the asks of groups that the latest plan left unplaced.
	waiting map[uint64]struct{}
	// changed says that Subscribed may have to be chosen again.
	changed bool
}

// ask is one distinct ask and how many groups have it.
type ask struct {
	ask    place.Ask
	sub    *nusav1.ShapeSubscription
	groups int
	// waiting counts groups with instances that the latest plan left unplaced.
	waiting int
}

// add counts the asks of a job.
func (d *Demand) add(j *Job) {
	d.changed = true
	if d.asks == nil {
		d.asks = map[uint64]*ask{}
	}
	for _, g := range j.PlaceJob.Groups {
		hash := g.AskHash
		a := d.asks[hash]
		if a == nil {
			a = &ask{ask: g.Ask, sub: subscription(hash, g.Ask)}
			d.asks[hash] = a
		}
		a.groups++
		j.asks = append(j.asks, hash)
	}
}

// drop removes the asks of a job from the counts.
func (d *Demand) drop(j *Job) {
	for _, hash := range j.asks {
		if a := d.asks[hash]; a != nil {
			a.groups--
			if a.groups <= 0 {
				delete(d.asks, hash)
			}
		}
	}
	j.asks, d.changed = nil, true
}

// CountWaiting counts again how many groups of pending jobs have each ask.
func (d *Demand) CountWaiting(pending JobSet, jobs map[JobKey]*Job) {
	if len(pending) == 0 && len(d.waiting) == 0 {
		return
	}
	for hash := range d.waiting {
		if a := d.asks[hash]; a != nil {
			a.waiting = 0
		}
	}
	d.changed, d.waiting = true, map[uint64]struct{}{}
	for k := range pending {
		j := jobs[k]
		if j == nil {
			continue
		}
		for i, hash := range j.asks {
			if a := d.asks[hash]; a != nil {
				a.waiting++
				if j.Decisions[j.PlaceJob.Groups[i].Name].Unplaced > 0 {
					d.waiting[hash] = struct{}{}
				}
			}
		}
	}
}

// Waiting returns the asks of waiting groups. It returns false if there are more than most.
func (d *Demand) Waiting(most int) (asks []place.Ask, few bool) {
	if len(d.waiting) > most {
		return nil, false
	}
	for hash := range d.waiting {
		if a := d.asks[hash]; a != nil {
			asks = append(asks, a.ask)
		}
	}
	return asks, true
}

// Subscribe chooses the asks that reports shall count exactly: first the asks of
// waiting groups, then those of the most groups. It returns whether the choice has
// changed.
func (d *Demand) Subscribe() (changed bool) {
	if !d.changed {
		return false
	}
	d.changed = false
	hashes := slices.Collect(maps.Keys(d.asks))
	slices.SortFunc(hashes, func(a, b uint64) int {
		x, y := d.asks[a], d.asks[b]
		return cmp.Or(cmp.Compare(y.waiting, x.waiting), cmp.Compare(y.groups, x.groups), cmp.Compare(a, b))
	})
	if len(hashes) > maxSubscriptions {
		hashes = hashes[:maxSubscriptions]
	}
	slices.Sort(hashes)
	if slices.Equal(hashes, d.subscribed) {
		return false
	}
	d.subscribed = hashes
	return true
}

// Subscriptions returns the chosen asks as regions get them.
func (d *Demand) Subscriptions() *nusav1.ShapeSubscriptions {
	out := &nusav1.ShapeSubscriptions{}
	for _, hash := range d.subscribed {
		if a := d.asks[hash]; a != nil {
			out.Asks = append(out.Asks, a.sub)
		}
	}
	return out
}

func subscription(hash uint64, a place.Ask) *nusav1.ShapeSubscription {
	s := &nusav1.ShapeSubscription{
		Ask: hash, Constraints: a.Constraints, Pool: a.Pool, Drivers: a.Drivers, Capabilities: a.Capabilities,
		Dedicated: a.Dedicated, DynamicPorts: int32(a.DynamicPorts), Apart: a.Apart, Volumes: a.Volumes,
		Resources: &nusav1.Resources{CpuMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes},
	}
	if a.GPU.Count > 0 || a.GPU.ShareMilli > 0 {
		s.Resources.Gpu = &nusav1.GPU{Count: int32(a.GPU.Count), Models: a.GPU.Models, ShareMilli: int32(a.GPU.ShareMilli)}
	}
	for _, p := range a.StaticPorts {
		s.StaticPorts = append(s.StaticPorts, int32(p))
	}
	return s
}
