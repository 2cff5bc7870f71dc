package sched

import (
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxRankings bounds the rankings that are kept between plans: about 30 bytes
	// for each of a region's nodes. Of more kinds of asks the latest are.
	maxRankings = 128
	// maxSuited bounds what rankings share: 13 bytes for each node.
	maxSuited = 64
)

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
	suited   map[string]*suited
	looked   uint64  // how often a ranking was looked for
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
	return &Planner{rankings: map[string]*ranking{}, suited: map[string]*suited{}, whys: map[string]string{}}
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
		clear(p.suited)
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
	key, suits := askKey(p.key[:0], ask, job)
	p.key = key
	p.looked++
	r, ok := p.rankings[string(key)]
	if !ok {
		var old *ranking
		if len(p.rankings) >= maxRankings {
			old = p.evict()
		}
		c := newClass(t, p.in.Funcs, ask, job)
		r = newRanking(c, p.suiting(c, key[:suits]), old)
		p.rankings[string(key)] = r
	}
	r.used = p.looked
	return r
}

// suiting finds or makes what the class shares with others of that key.
func (p *planner) suiting(c *class, key []byte) *suited {
	s, ok := p.suited[string(key)]
	if !ok {
		if len(p.suited) >= maxSuited {
			clear(p.suited)
		}
		s = newSuited(c)
		p.suited[string(key)] = s
	}
	return s
}

// evict takes out the ranking that was not used for longest.
func (p *planner) evict() *ranking {
	var oldest string
	var r *ranking
	for key, o := range p.rankings {
		if r == nil || o.used < r.used {
			oldest, r = key, o
		}
	}
	delete(p.rankings, oldest)
	return r
}
