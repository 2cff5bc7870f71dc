package sched

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

// maxRankings bounds the rankings that are kept between plans: about 40 bytes
// for each of a region's nodes.
const maxRankings = 128

// Planner makes plans of one state, one after the other. It keeps the nodes
// and their rankings between plans and brings them up to date by what has
// changed, so that a plan costs what it decides and not what the region has.
// Its plans are those of Make. Not for two goroutines at once.
//
// Funcs must answer the same for a node (ID, InventoryIndex) as long as it
// lives.
type Planner struct {
	nodes    *table // made when first needed
	rankings map[string]*ranking
	here     []int32 // scratch of pickers, all zeroes
	key      []byte  // scratch of askKey
	// whys are the reasons given lately, each one string; text and terms are
	// what the next is made of.
	whys  map[string]string
	text  []byte
	terms []Term
	// current says that nodes are those of the plan in the making, made how many
	// plans there were.
	current bool
	made    uint64
}

// NewPlanner knows nothing yet.
func NewPlanner() *Planner {
	return &Planner{rankings: map[string]*ranking{}, whys: map[string]string{}}
}

// table answers the nodes as they are in the view, and as the plan has charged
// them so far.
func (p *planner) table() *table {
	if p.current {
		return p.nodes
	}
	p.current = true
	if p.nodes == nil || !p.in.View.SameNodes(p.nodes.view) {
		p.nodes = newTable(p.in.View)
		p.here = make([]int32, len(p.nodes.nodes))
		clear(p.rankings)
		return p.nodes
	}
	p.nodes.update(p.in.View)
	p.trim()
	return p.nodes
}

// forget lets go of the view that the plan was made from, but for what the next
// one that needs nodes is compared with: that may be long after, and thousands of
// allocations may have changed by then.
func (k *Planner) forget() {
	if k.nodes != nil {
		k.nodes.view = k.nodes.view.Charges()
	}
}

// trim forgets what rankings that were not used for long have to catch up
// with, and the rankings with it.
func (p *planner) trim() {
	t := p.nodes
	if len(t.changed) <= 4*len(t.nodes)+1024 {
		return
	}
	for key, r := range p.rankings {
		if r.seen < len(t.changed)/2 {
			delete(p.rankings, key)
			continue
		}
		r.catchUp()
		r.seen, r.refused = 0, nil
	}
	t.changed, t.settled = t.changed[:0], 0
}

// ranking finds or makes the index of nodes for an ask. Jobs that have
// dedicated instances see other nodes than the rest.
func (p *planner) ranking(ask *state.Ask, job state.JobKey) *ranking {
	t := p.table()
	if !ask.Dedicated && t.dedicatedJobs[job] == 0 {
		job = state.JobKey{}
	}
	p.key = askKey(p.key[:0], ask, job)
	r, ok := p.rankings[string(p.key)]
	if !ok {
		if len(p.rankings) >= maxRankings {
			clear(p.rankings)
		}
		r = newRanking(newClass(t, p.in.Funcs, ask, job))
		p.rankings[string(p.key)] = r
	}
	return r
}
