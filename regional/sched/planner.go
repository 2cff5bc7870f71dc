package sched

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxRankings bounds the rankings that are cached between plans. A ranking takes about
	// 30 bytes for each node of the region. The least recently used ranking is evicted
	// first.
	maxRankings = 128
	// maxFeasible bounds the cached feasible sets. Rankings share them. A set takes 13
	// bytes for each node.
	maxFeasible = 64
	// defaultMaxPlaces bounds a plan if Input.MaxPlaces does not.
	defaultMaxPlaces = 10_000
)

// Planner makes plans of one state, one after the other. It caches the nodes and their
// rankings between plans and updates them with the changes. So the cost of a plan grows
// with its decisions, not with the size of the region. Its plans equal those of Make.
// Planner is not safe for concurrent use.
//
// Input.Funcs must always return the same values for the same node (ID, InventoryIndex), as
// long as the Planner is used.
type Planner struct {
	nodes    *nodeTable // made when first needed
	rankings map[string]*ranking
	feasible map[string]*feasible
	lookups  uint64  // counts the lookups of rankings
	onNode   []int32 // scratch memory of pickers, all zeroes between groups
	key      []byte  // scratch memory of askKey
	reasons  reasonCache
	terms    []Term // scratch memory
	// current is true when nodes were updated for the present plan.
	current bool
	plans   uint64 // counts the plans
}

// NewPlanner returns a planner with an empty cache.
func NewPlanner() *Planner {
	return &Planner{rankings: map[string]*ranking{}, feasible: map[string]*feasible{}, reasons: reasonCache{lines: map[string]string{}}}
}

// planner makes one plan over all groups that may need a decision.
type planner struct {
	cache    *Planner
	in       Input
	plan     *Plan
	wakeAt   int64
	reserved reservations
	// decision and picker are used for one group after the other.
	decision decision
	picker   picker
}

// Make makes a plan without a cache. Groups come by priority, then by age.
func Make(in Input) *Plan { return NewPlanner().Make(in) }

// Make returns the same plan as the function Make. Earlier plans of k do not change the
// result.
func (k *Planner) Make(in Input) *Plan {
	if in.MaxPlaces <= 0 {
		in.MaxPlaces = defaultMaxPlaces
	}
	k.current = false
	k.plans++
	if k.nodes != nil {
		k.nodes.reserved = nil
	}
	defer k.releaseView()
	p := &planner{cache: k, in: in, plan: &Plan{}}
	for g := range in.View.Undecided() {
		p.group(g)
		p.plan.More = p.plan.More || len(p.plan.Places) >= in.MaxPlaces
		if p.plan.More {
			break
		}
	}
	if p.reserved.handled > 0 {
		p.plan.Reserved = k.nodes.reserved
	}
	if p.wakeAt > 0 {
		p.plan.Wake = time.Duration(p.wakeAt - in.NowUnixNano)
	}
	return p.plan
}

// table returns the nodes of the view, without the resources that the plan has used so far. Their scores
// weigh the load.
func (k *Planner) table(view *state.View, load *pools.Load) *nodeTable {
	if k.current {
		return k.nodes
	}
	k.current = true
	if k.nodes == nil || !view.SameNodes(k.nodes.view) {
		k.nodes = newNodeTable(view)
		k.onNode = make([]int32, len(k.nodes.nodes))
		clear(k.rankings)
		clear(k.feasible)
		k.nodes.weigh(load)
		return k.nodes
	}
	k.nodes.update(view)
	k.nodes.weigh(load)
	k.trim()
	return k.nodes
}

// releaseView drops the view from which the plan was made. It keeps only the part with
// which the next plan compares the nodes. The next plan that needs nodes may come much
// later, and until then the whole view would hold thousands of allocations in memory that
// have changed since.
func (k *Planner) releaseView() {
	if k.nodes != nil {
		k.nodes.view = k.nodes.view.Charges()
	}
}

// trim drops rankings that were not used for long. It then empties the list of changes,
// which all other rankings have processed.
func (k *Planner) trim() {
	t := k.nodes
	if len(t.changed) <= 4*len(t.nodes)+1024 {
		return
	}
	for key, r := range k.rankings {
		if r.seen < len(t.changed)/2 {
			delete(k.rankings, key)
			continue
		}
		r.catchUp()
		r.seen, r.refused = 0, nil
	}
	t.changed, t.beforePlan = t.changed[:0], 0
}

// ranking returns the ranking of the nodes for an ask. A job that has dedicated instances
// gets a ranking of its own, because its dedicated nodes refuse other jobs.
func (k *Planner) ranking(in *Input, ask *state.Ask, job state.JobKey) *ranking {
	t := k.table(in.View, in.Load)
	if !ask.Dedicated && t.dedicatedJobs[job] == 0 {
		job = state.JobKey{}
	}
	key, kind := askKey(k.key[:0], ask, job)
	k.key = key
	k.lookups++
	r, ok := k.rankings[string(key)]
	if !ok {
		var old *ranking
		if len(k.rankings) >= maxRankings {
			old = k.evict()
		}
		f := newFilter(t, in.Funcs, ask, job)
		r = newRanking(f, k.feasibleFor(f, key[:kind]), old)
		k.rankings[string(key)] = r
	}
	r.used = k.lookups
	return r
}

// feasibleFor returns the feasible set of the filter. Filters with the same key share one
// set.
func (k *Planner) feasibleFor(f *filter, key []byte) *feasible {
	s, ok := k.feasible[string(key)]
	if !ok {
		if len(k.feasible) >= maxFeasible {
			clear(k.feasible)
		}
		s = newFeasible(f)
		k.feasible[string(key)] = s
	}
	return s
}

// evict removes and returns the least recently used ranking.
func (k *Planner) evict() *ranking {
	var oldest string
	var r *ranking
	for key, o := range k.rankings {
		if r == nil || o.used < r.used {
			oldest, r = key, o
		}
	}
	delete(k.rankings, oldest)
	return r
}

// askKey returns the key of an ask. Keys are equal for asks with the same nodes and the
// same scores. The first kind bytes of the key are equal for asks with the same feasible
// nodes.
func askKey(b []byte, a *state.Ask, job state.JobKey) (key []byte, kind int) {
	num := func(ns ...int64) {
		for _, n := range ns {
			b = binary.AppendVarint(b, n)
		}
	}
	str := func(ss ...string) {
		num(int64(len(ss)))
		for _, s := range ss {
			num(int64(len(s)))
			b = append(b, s...)
		}
	}
	str(a.Pool, a.Spread)
	num(int64(len(a.Drivers)))
	for _, d := range a.Drivers {
		str(d.Name)
		str(d.Capabilities...)
	}
	str(a.Constraints...)
	num(int64(len(a.Affinities)))
	for _, f := range a.Affinities {
		num(int64(f.Weight))
		str(f.Expr)
	}
	str(a.Volumes...)
	kind = len(b)
	num(a.Resources.CPUMilli, a.Resources.MemoryBytes, a.Resources.DiskBytes)
	str(job.Namespace, job.Job)
	num(flag(a.Dedicated), flag(job.Local))
	num(int64(len(a.GPUs)))
	for _, g := range a.GPUs {
		num(int64(g.Count), int64(g.ShareMilli))
		str(g.Models...)
	}
	num(int64(len(a.Ports)))
	for _, port := range a.Ports {
		num(int64(port.Static))
	}
	str(a.Apart...)
	return b, kind
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Check compares the cached nodes with a view, and empties the cache if they differ. It returns the
// ids of the nodes that differ.
func (k *Planner) Check(view *state.View) (wrong []string) {
	if k.nodes == nil {
		return nil
	}
	k.current = false
	cached := k.table(view, k.nodes.load)
	k.current = false
	defer func() { k.releaseView() }()
	fresh := newNodeTable(view)
	for i := range fresh.nodes {
		n := &fresh.nodes[i]
		if i >= len(cached.nodes) || !cached.nodes[i].sameUse(n) || cached.byNum[n.Num] != n.pos {
			wrong = append(wrong, n.ID)
		}
	}
	if len(wrong) == 0 && len(cached.nodes) != len(fresh.nodes) {
		wrong = []string{fmt.Sprintf("%d nodes", len(cached.nodes)-len(fresh.nodes))}
	}
	if len(wrong) > 0 {
		k.nodes = nil
	}
	return wrong
}

// sameUse reports whether two entries of a node say the same about its resources.
func (n *node) sameUse(o *node) bool {
	return n.ID == o.ID && n.free == o.free && n.allocs == o.allocs && n.dedicated == o.dedicated &&
		(n.dedicated == 0 || n.dedicatedJob == o.dedicatedJob) &&
		slices.Equal(n.ports, o.ports) && slices.Equal(n.gpu, o.gpu) && slices.Equal(n.apart, o.apart)
}
