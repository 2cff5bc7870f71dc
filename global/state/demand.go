package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/forms"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxSubscriptions bounds the asks for which a report has an exact count. federation.proto names
// the same bound.
const maxSubscriptions = 256

// Demand holds the distinct asks of the groups of all jobs. The state's lock guards it.
type Demand struct {
	// subscribed holds the sorted hashes of the asks that regions count exactly, and subscriptions
	// holds these asks. They stay the same until Subscribe chooses again, even if for a moment no
	// job has one of them.
	subscribed    []uint64
	subscriptions []*nusav1.ShapeSubscription

	asks map[uint64]*ask // by hash
	// wanted holds the hashes of the asks of groups that have instances without an owner.
	wanted map[uint64]struct{}
	// changed: Subscribe must choose again.
	changed bool
}

// ask is one distinct ask, with the number of groups that have it.
type ask struct {
	ask    place.Ask
	sub    *nusav1.ShapeSubscription
	groups int
	// wanting is the number of these groups that have instances without an owner.
	wanting int
}

// groupDemand is the part of a group in the counts.
type groupDemand struct {
	hash uint64
	// owned is the number of instances with an owner. wants: owned is less than the number of the
	// group's instances.
	owned int
	wants bool
}

// add counts the asks of a job with its present slots.
func (d *Demand) add(j *Job) {
	d.changed = true
	if d.asks == nil {
		d.asks, d.wanted = map[uint64]*ask{}, map[uint64]struct{}{}
	}
	for _, g := range j.Place().Groups {
		a := d.asks[g.AskHash]
		if a == nil {
			a = &ask{ask: g.Ask, sub: subscription(g.AskHash, g.Ask)}
			d.asks[g.AskHash] = a
		}
		a.groups++
		j.demand = append(j.demand, groupDemand{hash: g.AskHash})
	}
	for s := range j.Slots.All() {
		d.own(j, &s, 1)
	}
	for i := range j.demand {
		d.count(j, i)
	}
}

// drop removes the asks of a job from the counts.
func (d *Demand) drop(j *Job) {
	for i, g := range j.demand {
		j.demand[i].wants = false
		d.want(g, false)
		if a := d.asks[g.hash]; a != nil {
			a.groups--
			if a.groups <= 0 {
				delete(d.asks, g.hash)
			}
		}
	}
	j.demand, d.changed = nil, true
}

// change counts a slot of a job that changed from old to s. The zero slot means that there is no
// slot.
func (d *Demand) change(j *Job, old, s *region.Slot) {
	if i := d.own(j, old, -1); i >= 0 {
		d.count(j, i)
	}
	if i := d.own(j, s, 1); i >= 0 {
		d.count(j, i)
	}
}

// own adds the instances of a slot, times n, to the owned instances of the slot's group. It returns
// the position of the group, or -1 if the slot does not count. A slot that is being revoked does not
// count, because its instances will be placed elsewhere.
func (d *Demand) own(j *Job, s *region.Slot, n int) int {
	i, ok := slices.BinarySearchFunc(j.Place().Groups, s.Group, func(g place.Group, name string) int { return cmp.Compare(g.Name, name) })
	if !ok || i >= len(j.demand) || s.System || s.Vacant || s.Desired == region.DesiredRevoke && s.ReturnTo == "" {
		return -1
	}
	count := j.Place().Groups[i].Count
	j.demand[i].owned += n * max(0, min(s.To, count)-s.From)
	return i
}

// count notes whether a group of a job has instances without an owner. It ignores system jobs,
// whose instances run on every node.
func (d *Demand) count(j *Job, i int) {
	g := &j.demand[i]
	wants := g.owned < j.Place().Groups[i].Count && j.Place().Type != place.System
	if wants != g.wants {
		d.want(*g, wants)
		g.wants = wants
	}
}

func (d *Demand) want(g groupDemand, wants bool) {
	a := d.asks[g.hash]
	if a == nil || g.wants == wants {
		return
	}
	if wants {
		a.wanting++
		d.wanted[g.hash] = struct{}{}
	} else {
		a.wanting--
		if a.wanting == 0 {
			delete(d.wanted, g.hash)
		}
	}
	d.changed = d.changed || len(d.asks) > maxSubscriptions // wanted asks are chosen first
}

// maxLooked bounds the pending jobs that Rivals examines one by one.
const maxLooked = 256

// Rivals returns one rival for each group of the pending jobs that has instances without an owner. If
// that would be more than most rivals, it returns one rival for each distinct ask of these groups,
// which allows every region. few is false if even those are more than most. A rival has Decided set
// if decided returns true for the job of its group, or for the jobs of all groups with its ask.
func (d *Demand) Rivals(pending JobSet, jobs map[JobKey]*Job, most int, decided func(JobKey, *Job) bool) (rivals []place.Rival, few bool) {
	if len(d.wanted) == 0 {
		return nil, true
	}
	if len(pending) > maxLooked {
		for hash := range d.wanted {
			rivals = append(rivals, place.Rival{Ask: d.asks[hash].ask})
		}
		return rivals, len(rivals) <= most
	}
	byAsk := map[uint64]bool{} // whether the jobs of all groups are decided
	for k := range pending {
		j := jobs[k]
		if j == nil {
			continue
		}
		for i, g := range j.demand {
			if !g.wants {
				continue
			}
			v := place.Rival{Ask: j.Place().Groups[i].Ask, Allow: j.Place().Groups[i].Regions.Allow, Decided: decided(k, j)}
			all, known := byAsk[g.hash]
			byAsk[g.hash] = v.Decided && (all || !known)
			rivals = append(rivals, v)
		}
	}
	if len(rivals) <= most {
		return rivals, true
	}
	rivals = rivals[:0]
	for hash, all := range byAsk {
		rivals = append(rivals, place.Rival{Ask: d.asks[hash].ask, Decided: all})
	}
	return rivals, len(rivals) <= most
}

// Subscribe chooses the asks that reports count exactly: first the asks of groups with instances
// without an owner, then the asks of the most groups. It reports whether the choice has changed.
func (d *Demand) Subscribe() (changed bool) {
	if !d.changed {
		return false
	}
	d.changed = false
	hashes := slices.Collect(maps.Keys(d.asks))
	slices.SortFunc(hashes, func(a, b uint64) int {
		x, y := d.asks[a], d.asks[b]
		return cmp.Or(cmp.Compare(y.wanting, x.wanting), cmp.Compare(y.groups, x.groups), cmp.Compare(a, b))
	})
	if len(hashes) > maxSubscriptions {
		hashes = hashes[:maxSubscriptions]
	}
	slices.Sort(hashes)
	if slices.Equal(hashes, d.subscribed) {
		return false
	}
	d.subscribed, d.subscriptions = hashes, make([]*nusav1.ShapeSubscription, len(hashes))
	for i, hash := range hashes {
		d.subscriptions[i] = d.asks[hash].sub
	}
	return true
}

// Subscriptions returns the chosen asks as they are sent to regions.
func (d *Demand) Subscriptions() *nusav1.ShapeSubscriptions {
	return &nusav1.ShapeSubscriptions{Asks: d.subscriptions}
}

// Subscribed returns the sorted hashes of the chosen asks. The caller must not change them.
func (d *Demand) Subscribed() []uint64 { return d.subscribed }

// Asks returns the chosen asks that have one of the hashes.
func (d *Demand) Asks(hashes []uint64) []*nusav1.ShapeSubscription {
	var out []*nusav1.ShapeSubscription
	for _, hash := range hashes {
		if i, chosen := slices.BinarySearch(d.subscribed, hash); chosen {
			out = append(out, d.subscriptions[i])
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

// missingDrivers warns, once each, of drivers that no node offers in any region which their groups allow. A region that
// has not said which drivers it has may have each. The lock is held.
func missingDrivers(st *State, s *Spec) (out []string) {
	groups, drivers := map[string][]string{}, map[string]string{} // by the beginning of the text
	known := map[string]instead{}                                 // of groups that all regions are allowed
	left := maxMatches
	for i := range s.job.Groups {
		g := &s.job.Groups[i]
		for _, d := range g.Ask.Drivers {
			offer, is := known[d]
			if !is || len(g.Regions.Allow) > 0 {
				offer = offeredInstead(st, g, d, &left)
			}
			if len(g.Regions.Allow) == 0 {
				known[d] = offer
			}
			if !offer.missing {
				continue
			}
			which := "no region has driver " + d
			if len(g.Regions.Allow) > 0 {
				which = "no region that the job allows has driver " + d
			}
			groups[which], drivers[which] = append(groups[which], g.Name), offer.names
		}
	}
	for _, which := range slices.Sorted(maps.Keys(groups)) {
		names := "group " + groups[which][0] + " waits"
		if len(groups[which]) > 1 {
			names = "groups " + topo.ListNames(groups[which]) + " wait"
		}
		out = append(out, fmt.Sprintf("%s: %s until a node offers it (drivers there: %s)", which, names, drivers[which]))
	}
	return out
}

// instead says whether a driver is missing in all regions, and which ones they have.
type instead struct {
	names   string
	missing bool
}

// offeredInstead reports whether no region that a group allows has a driver, and names those that they have. Each
// comparison lowers left. Once left is below 0, offeredInstead takes it that a region has the driver.
func offeredInstead(st *State, g *place.Group, driver string, left *int) instead {
	offered := map[string]struct{}{}
	cost := 0
	for _, s := range g.Regions.Allow {
		cost += 1 + len(s.Labels)
	}
	may := func(name string) bool {
		r := st.Regions[name]
		*left -= cost
		if *left < 0 {
			return true
		}
		if r.Record.GetLost() != nil || r.Record.GetClusterId() == "" || len(g.Regions.Allow) > 0 && !g.Regions.Allows(r.labelled()) {
			return false
		}
		have := r.Report.GetDrivers()
		for _, d := range have {
			offered[d] = struct{}{}
		}
		return len(have) == 0 || r.Report.GetDriversTruncated() || slices.Contains(have, driver)
	}
	if slices.ContainsFunc(st.RegionNames(), may) || len(offered) == 0 {
		return instead{}
	}
	return instead{strings.Join(slices.Sorted(maps.Keys(offered)), ", "), true}
}

// maxMatches bounds the labels that the warnings about one job compare, because the lock is held.
const maxMatches = 100_000

// WrongConfigs returns the problems of configs of plugins that every region refuses which the job allows and
// which has the plugin, also in the steps of a workflow. Regions that do not say what their plugins accept may accept
// it. It looks at each region once, and then for each task only at the different kinds of regions. The lock is held.
func WrongConfigs(st *State, spec *nusav1.JobSpec) (out job.Errors) {
	known := map[pluginIn]*pluginKinds{}
	for in, task := range forms.All(spec) {
		at := pluginIn{driver: task.Driver}
		if regions := job.RegionsOf(in, task.Group); len(regions.GetAllow()) > 0 {
			at.regions = regions
		}
		if known[at] == nil {
			known[at] = kindsOf(st, at)
		}
		out = append(out, known[at].wrong(&task)...)
		if len(out) >= maxConfigProblems {
			return out[:maxConfigProblems]
		}
	}
	return out
}

// pluginIn is a plugin in the regions that a part of a job allows. regions is nil if all are allowed.
type pluginIn struct {
	driver  string
	regions *nusav1.RegionsSpec
}

// pluginKinds are the different forms that the regions have of a plugin. any: a region may accept any config.
type pluginKinds struct {
	driver string
	kinds  []forms.Kind
	any    bool
}

// kindsOf returns what the regions accept for a plugin. The lock is held.
func kindsOf(st *State, at pluginIn) *pluginKinds {
	out, regions := &pluginKinds{driver: at.driver}, regionsToPlace(at.regions)
	var says []string
	for _, name := range st.RegionNames() {
		r := st.Regions[name]
		switch {
		case r.Record.GetLost() != nil || r.Record.GetClusterId() == "" || !regions.Allows(r.labelled()):
		case st.Forms.Known(name):
			says = append(says, name)
		case r.Report == nil || r.Report.GetDriversTruncated() || slices.Contains(r.Report.GetDrivers(), at.driver):
			out.any = true
			return out
		}
	}
	out.kinds, out.any = st.Forms.Kinds(at.driver, says)
	return out
}

// wrong returns the problems of a task's config if each region refuses it: those of the first region.
func (p *pluginKinds) wrong(task *forms.Task) (first job.Errors) {
	refusing := 0
	if p.any {
		return nil
	}
	for _, k := range p.kinds {
		problems := k.Refuses(task)
		if len(problems) == 0 {
			return nil
		}
		if refusing += k.N; first == nil {
			first = problems
		}
	}
	if refusing == 0 {
		return nil
	}
	where := fmt.Sprintf(" (driver %s in region %s)", p.driver, p.kinds[0].Region)
	if more := refusing - 1; more > 0 {
		where = fmt.Sprintf(" (driver %s in region %s and %d more)", p.driver, p.kinds[0].Region, more)
	}
	for i := range first {
		first[i].Message += where
	}
	return first
}

// maxConfigProblems bounds the problems of configs in one error.
const maxConfigProblems = 20

// Bounds counts the jobs with near rules and the slots that have to keep a bound. Jobs with equal groups share these
// and their rules, so there are few of them. The state's lock guards it.
type Bounds struct {
	// groups are the groups of the jobs with near rules, by the first one.
	groups map[*place.Group]nearGroups
	// Slots are the numbers of slots that have to keep a required bound, by bound and region.
	Slots map[BoundAt]int
}

// nearGroups are the groups of a number of jobs.
type nearGroups struct {
	groups []place.Group
	jobs   int
}

// BoundAt is a bound of a group in a region.
type BoundAt struct {
	Near   *place.Near
	Region string
}

// addJob adds n jobs with the near rules of a record.
func (b *Bounds) addJob(of *Record, n int) {
	groups := of.spec.job.Groups
	n += b.groups[&groups[0]].jobs
	if n == 0 {
		delete(b.groups, &groups[0])
	} else {
		b.groups[&groups[0]] = nearGroups{groups, n}
	}
}

// addSlot adds n times the bounds of a slot. The zero slot has no bounds.
func (b *Bounds) addSlot(j *place.Job, s *region.Slot, n int) {
	for near := range j.BoundsOf(s) {
		at := BoundAt{near, s.Region}
		if b.Slots[at] += n; b.Slots[at] == 0 {
			delete(b.Slots, at)
		}
	}
}

// Snapshot returns one job for all jobs that share their groups. It has a slot in each region where slots have to
// keep its bounds. The lock is held.
func (b *Bounds) Snapshot() []place.Job {
	type owner struct {
		job   int
		group string
	}
	jobs, owners := make([]place.Job, 0, len(b.groups)), map[*place.Near]owner{}
	for _, of := range b.groups {
		for i := range of.groups {
			near := of.groups[i].Regions.Near
			for k := range near {
				owners[&near[k]] = owner{len(jobs), of.groups[i].Name}
			}
		}
		jobs = append(jobs, place.Job{Groups: of.groups})
	}
	for at := range b.Slots {
		if of, known := owners[at.Near]; known {
			j := &jobs[of.job]
			j.Slots = append(j.Slots, region.Slot{Group: of.group, Region: at.Region, To: 1})
		}
	}
	for i := range jobs {
		slices.SortFunc(jobs[i].Slots, func(a, b region.Slot) int { return cmp.Compare(a.Group, b.Group) })
	}
	return jobs
}
