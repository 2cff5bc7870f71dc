package place

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/apportion"
)

// Rule says how the instances of a group are divided among regions, and why.
type Rule struct {
	Divide Divide
	// Least is how many regions get an instance, if that many can take one.
	Least int
	// Why says where the rule comes from, for example "the default of a batch job".
	Why string
}

// leastRegions is the number of regions that the default rule of a service uses.
const leastRegions = 2

// ruleOf returns the rule of a group. allowed is the number of regions that match the group's
// regions.allow, whether they can take work or not.
func ruleOf(j *Job, g *Group, allowed int) Rule {
	r := &g.Regions
	switch {
	case j.Type == System:
		return Rule{Why: "a system job runs in every region"}
	case r.Divide != "":
		return Rule{Divide: r.Divide, Why: "as regions.divide says"}
	case j.Type == Batch:
		return Rule{Divide: DivideBest, Why: "the default of a batch job"}
	case len(r.Near) > 0:
		return Rule{Divide: DivideBest, Why: "the default with regions.near"}
	case len(r.Prefer) > 0:
		return Rule{Divide: DivideBest, Why: "the default with regions.prefer"}
	case r.SpreadMin > 0 || r.SpreadMax > 0:
		return Rule{Divide: DivideBest, Why: "the default with regions.spread"}
	case g.Count < leastRegions:
		return Rule{Divide: DivideBest, Why: "the default of one instance"}
	case allowed < leastRegions:
		return Rule{Divide: DivideBest, Why: "the default where one region is allowed"}
	}
	return Rule{Divide: DivideCapacity, Least: leastRegions, Why: "the default of a service: at least two regions where two can take one"}
}

// apply returns the spec with the rule's Divide.
func (r Rule) apply(spec RegionsSpec) RegionsSpec {
	spec.Divide = r.Divide
	return spec
}

// String prints the rule, for example "best, the default of a batch job".
func (r Rule) String() string {
	if r.Divide == "" {
		return r.Why
	}
	return string(r.Divide) + ", " + r.Why
}

// option is a region that may take instances.
type option struct {
	// fits is how many more instances fit, above 0.
	fits int
	// owned is how many instances the region has.
	owned int
	// weight is the region's weight in `prefer`.
	weight int
}

// division is the input of divide: how many instances to place, and the bounds.
type division struct {
	// spec.Divide is the rule, never empty.
	spec RegionsSpec
	// least is how many regions get an instance, if that many can take one. In contrast to
	// spread.min, least holds no instance back.
	least int
	// desired is the size of the whole group. n is the number of instances to place.
	desired, n int
	// usedElsewhere is the number of regions that have instances of the group and can take no more.
	// They count for spread.
	usedElsewhere int
	// chunk is the least number of instances for a region that has none, at least 1.
	chunk int
}

// divisionResult says how many instances each option takes, in the order of the options. heldBack
// instances are not placed, because spread.min cannot be met.
type divisionResult struct {
	counts   []int
	heldBack int
}

// divide gives n instances to options. The best option comes first. divide chooses a primary set of
// regions as Divide says, and divides n among them by largest remainders. The overflow goes to the
// next best regions, as far as spread.max allows.
func (d division) divide(options []option) divisionResult {
	out := divisionResult{counts: make([]int, len(options))}
	distinct, openable := d.distinct(options, out.counts), 0
	for _, o := range options {
		if o.owned == 0 && o.fits >= d.chunk {
			openable++
		}
	}
	limit := math.MaxInt
	if d.spec.SpreadMax > 0 {
		limit = d.spec.SpreadMax
	}
	if least := min(d.spec.SpreadMin, d.desired); least > 0 {
		if possible := max(distinct, min(limit, distinct+openable)); possible < least {
			out.heldBack = min(d.n, (least-possible)*max(1, d.desired/least))
		}
	}
	left := d.n - out.heldBack

	primary := d.primary(options, distinct, limit)
	left -= d.share(options, primary, left, out.counts)
	distinct = d.distinct(options, out.counts)
	for i, o := range options {
		if left <= 0 {
			break
		}
		if o.owned == 0 && out.counts[i] == 0 {
			if distinct >= limit || o.fits < d.chunk || !d.spare(options, out.counts, &left) {
				continue
			}
			distinct++
		}
		take := min(o.fits-out.counts[i], left)
		out.counts[i] += take
		left -= take
	}
	return out
}

// placed returns the number of instances that the options take.
func (r divisionResult) placed() (n int) {
	for _, k := range r.counts {
		n += k
	}
	return n
}

// distinct returns the number of regions that the group uses.
func (d division) distinct(options []option, counts []int) int {
	n := d.usedElsewhere
	for i, o := range options {
		if o.owned+counts[i] > 0 {
			n++
		}
	}
	return n
}

// spare makes sure that a whole chunk is left for a region that has no instance yet. If necessary
// it takes instances from regions that got more than a chunk. If that is not enough, it changes
// nothing and returns false.
func (d division) spare(options []option, counts []int, left *int) bool {
	gifts, sum := make([]int, len(counts)), *left
	for i := range counts {
		keep := d.chunk
		if options[i].owned > 0 {
			keep = 0
		}
		gifts[i] = max(0, min(d.chunk-sum, counts[i]-keep))
		sum += gifts[i]
	}
	if sum < d.chunk {
		return false
	}
	for i, g := range gifts {
		counts[i] -= g
	}
	*left = sum
	return true
}

// primarySize returns the number of regions in the primary set, for a group without any instance
// and with enough regions. If the first primarySize regions take all instances, further regions
// change nothing, unless regions have weights.
func (d division) primarySize() int {
	size := max(1, d.spec.SpreadMin)
	if d.spec.Divide != DivideBest {
		switch {
		case d.spec.SpreadMax > 0:
			size = max(size, d.spec.SpreadMax)
		case d.spec.SpreadMin == 0:
			size = d.desired
		}
	}
	return max(1, min(size, d.desired/d.chunk))
}

// primary chooses the regions among which n is divided. It returns their positions in options.
func (d division) primary(options []option, distinct, limit int) []int {
	weighted := d.spec.Divide == DivideWeighted &&
		slices.ContainsFunc(options, func(o option) bool { return o.weight > 0 })
	size := max(1, min(d.spec.SpreadMin, d.desired))
	if d.spec.Divide != DivideBest {
		switch {
		case d.spec.SpreadMax > 0:
			size = max(size, d.spec.SpreadMax)
		case d.spec.SpreadMin == 0:
			size = len(options) + d.usedElsewhere
		}
	}
	size = min(size, max(1, d.desired/d.chunk))

	var chosen []int
	choose := func(i int) {
		o := options[i]
		if len(chosen)+d.usedElsewhere >= size && len(chosen) > 0 {
			return
		}
		if weighted && o.weight <= 0 || o.fits < d.chunk && o.owned == 0 || o.owned == 0 && distinct >= limit {
			return
		}
		if o.owned == 0 {
			distinct++
		}
		chosen = append(chosen, i)
	}
	// A group that uses several regions stays in the regions that it has. A group that uses one
	// region has the sticky term in the score instead.
	if size > 1 {
		for i := range options {
			if options[i].owned > 0 {
				choose(i)
			}
		}
	}
	for i := range options {
		if size == 1 || options[i].owned == 0 {
			choose(i)
		}
	}
	// If fewer regions have a weight than spread.min needs, regions without a weight are added.
	if weighted && len(chosen)+d.usedElsewhere < min(d.spec.SpreadMin, size) {
		weighted = false
		for i := range options {
			if !slices.Contains(chosen, i) {
				choose(i)
			}
		}
		slices.Sort(chosen)
	}
	return chosen
}

// share gives up to n instances to the primary regions, and returns how many it gave. With Divide
// best and capacity, the share of a region is the number of its instances plus the number that
// still fits. Otherwise it is the weight of the region, or the same for all. If fewer regions get
// an instance than spread.min or least asks for, the best other primary regions get one.
func (d division) share(options []option, primary []int, n int, counts []int) (given int) {
	parts, sum, free := make([]apportion.Part, len(primary)), 0, n
	for k, i := range primary {
		o := options[i]
		s := apportion.Part{Share: 1, Low: o.owned, High: o.owned + o.fits}
		switch d.spec.Divide {
		case DivideEven:
		case DivideWeighted:
			s.Share = int64(max(1, o.weight))
		default:
			s.Share = min(maxShare, int64(o.fits)+int64(o.owned))
		}
		if d.chunk > 1 && o.owned == 0 {
			if free < d.chunk || o.fits < d.chunk {
				s.High = 0
			} else {
				s.Low = d.chunk
				free -= d.chunk
			}
		}
		parts[k] = s
		sum += o.owned
	}
	apportion.Divide(parts, sum+n)
	if d.chunk == 1 && raiseLows(parts, d.missing(options, primary), sum+n) {
		apportion.Divide(parts, sum+n)
	}
	for k, i := range primary {
		counts[i] = parts[k].Gets - options[i].owned
		given += counts[i]
	}
	return given
}

// missing returns how many of the primary regions must have instances.
func (d division) missing(options []option, primary []int) int {
	n := min(max(d.least, d.spec.SpreadMin), d.desired) - d.usedElsewhere
	for i, o := range options {
		if o.owned > 0 && !slices.Contains(primary, i) {
			n--
		}
	}
	return n
}

// raiseLows makes sure that at least `least` parts get an instance, as far as the total allows.
// Parts that already get instances keep at least one. The first of the other parts get one each.
// It returns false if nothing has to change.
func raiseLows(parts []apportion.Part, least, total int) bool {
	used := 0
	for _, s := range parts {
		total -= s.Low
		if s.Gets > 0 {
			used++
		}
	}
	if used >= least || used == len(parts) {
		return false
	}
	for k := range parts {
		if s := &parts[k]; s.Gets > 0 && s.Low == 0 && total > 0 {
			s.Low, total = 1, total-1
		}
	}
	for k := range parts {
		if s := &parts[k]; s.Gets == 0 && s.High > 0 && used < least && total > 0 {
			s.Low, total, used = 1, total-1, used+1
		}
	}
	return true
}

// maxShare bounds the shares, so that no product overflows. A region with room for more instances
// than maxShare counts as one with room for maxShare.
const maxShare = 1 << 30

// shares returns the actions that divide Group.Parallel among the regions that own slots. The stored
// shares of a group never exceed Parallel together, whatever is written first: a share grows only by what
// is left, and shrinks only to the number of instances of the region that have not ended, because more
// cannot run there. Only a smaller Parallel shrinks it further. What leaves a region may run there until the
// region has confirmed, whatever shares its slots have. planned are the other actions of the plan; their slots
// are left alone. A slot of a lost region that another one may take over needs no share, whether one has room for
// it or not. A slot that stays there, because of disconnect.region.replace, keeps it: its instances may run.
func shares(j *Job, regions regionList, planned []Action) (out []Action) {
	for i := range j.Groups {
		if g := &j.Groups[i]; g.Parallel > 0 && j.Type == Batch && !j.Stopped {
			out = append(out, sharesOf(j, g, regions, planned)...)
		}
	}
	return out
}

// regionShare is what one region has of Group.Parallel.
type regionShare struct {
	region string
	slots  []*region.Slot // that must run
	has    int            // the sum of their shares
	open   int            // their instances that have not ended and stay in the region
	leaves int            // the instances of slots that are being stopped or revoked, and that may run
	back   int            // what slots that are being revoked may run again, if the region keeps them
}

// uses returns the most instances of the group that the region may run now, or may run if it keeps what leaves.
// It may start what its slots that must run allow, while what leaves still runs.
func (r *regionShare) uses() int { return max(r.has+r.leaves, r.back) }

// inherit gives what stays in the region the share of what leaves it. Otherwise, instances that run would have no share, and
// other regions would get that share once the rest has left.
func (r *regionShare) inherit() {
	r.has += max(0, min(r.open-r.has, r.back-r.leaves-r.has))
}

// leave counts a slot that is being stopped or revoked in a region. What a lost region does not confirm holds up
// nobody: none of it counts if another region may take it over, and otherwise only the share that the slot has.
func (r *regionShare) leave(s *region.Slot, movable bool, at *Region) {
	switch {
	case movable:
	case at == nil || at.Lost:
		r.back = max(r.back, s.Parallel)
	default:
		if s.Desired == region.DesiredRevoke { // what is stopped never runs again
			r.back = max(r.back, s.Parallel)
		}
		if s.State != region.Done {
			r.leaves += s.Count()
		}
	}
}

func sharesOf(j *Job, g *Group, regions regionList, planned []Action) (out []Action) {
	all := regionShares(j, g, regions)
	old := make([]int, len(all))
	for i := range all {
		old[i] = all[i].has
	}
	divideParallel(all, g.Parallel)
	for i := range all {
		change := all[i].has - old[i]
		for _, s := range slices.Backward(all[i].slots) {
			to := max(0, s.Parallel+change)
			if change == 0 || to == s.Parallel || slices.ContainsFunc(planned, func(a Action) bool { return a.Slot.Key() == s.Key() }) {
				continue
			}
			out = append(out, Action{
				Kind: Share, Namespace: j.Namespace, Job: j.Name, Group: g.Name, From: s.From, To: s.To, Region: s.Region,
				JobVersion: s.JobVersion, Run: s.Run, Slot: *s, Parallel: to,
				Why: fmt.Sprintf("%d of %d instances may run at once here", all[i].has, g.Parallel),
			})
			change -= to - s.Parallel
		}
	}
	return out
}

// regionShares returns what each region has of a group's Parallel, by region.
func regionShares(j *Job, g *Group, regions regionList) (all []regionShare) {
	for i := range j.Slots {
		s := &j.Slots[i]
		if s.Group != g.Name || s.Vacant {
			continue
		}
		at, found := slices.BinarySearchFunc(all, s.Region, func(r regionShare, name string) int { return cmp.Compare(r.region, name) })
		if !found {
			all = slices.Insert(all, at, regionShare{region: s.Region})
		}
		r := &all[at]
		if s.Desired != region.DesiredRun {
			r.leave(s, j.movableAt(s) >= 0, regions.of(s))
			continue
		}
		r.slots, r.has = append(r.slots, s), r.has+s.Parallel
		if at := regions.of(s); at != nil && at.Lost && j.movableAt(s) >= 0 {
			continue // another region may take it over
		}
		if s.State != region.Done || !s.OfRun(j.Run) {
			r.open += s.Count()
		}
	}
	for i := range all {
		if c, known := reported(j, g.Name, all[i].region, all[i].slots); known {
			all[i].open = min(all[i].open, c.Open)
		}
	}
	return all
}

// reported returns what a region reports about a group, if the report is about slots, those that it must run. A summary
// from before the latest offers says nothing about their instances. Neither does one from before the newest version of
// slots that have not ended: an instance that had failed is tried again with that version. One with instances that an
// override holds does not count either: the region keeps their share. It may clear the override while it is
// disconnected, and then runs them.
func reported(j *Job, group, name string, slots []*region.Slot) (c GroupCounts, known bool) {
	sum := j.summaryOf(name)
	if sum == nil || sum.Run != j.Run {
		return GroupCounts{}, false
	}
	owned := 0
	for _, s := range slots {
		owned += s.Count()
		if s.State != region.Done && sum.Version != 0 && s.JobVersion > sum.Version {
			return GroupCounts{}, false
		}
	}
	c = sum.Groups[group]
	return c, c.Open+c.Ended == owned
}

// divideParallel changes the shares of the regions. total is what they may have together.
func divideParallel(all []regionShare, total int) {
	has, lacks := 0, 0
	for i := range all {
		has += all[i].has
		lacks += max(0, all[i].open-all[i].has)
	}
	if lacks > 0 { // only then it matters what the others do not need
		has = 0
		for i := range all {
			all[i].has = min(all[i].has, all[i].open)
			has += all[i].has
		}
	}
	amount, left := func(r *regionShare) int { return max(0, r.open-r.has) }, total
	if has > total { // Parallel has become smaller
		amount = func(r *regionShare) int { return r.has }
	} else {
		for i := range all {
			all[i].inherit()
			left -= all[i].uses()
		}
	}
	var parts []apportion.Part
	var of []int
	for i := range all {
		if n := amount(&all[i]); n > 0 {
			parts, of = append(parts, apportion.Part{Share: int64(n), High: n}), append(of, i)
		}
	}
	if len(parts) == 0 || left <= 0 {
		return
	}
	apportion.Divide(parts, left)
	for k, i := range of {
		if has > total {
			all[i].has = 0
		}
		all[i].has += parts[k].Gets
	}
}
