package place

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
)

// ledger holds, for each region, the capacity that is assumed to be taken beyond the region's
// report: by slots that the report does not include yet, and by the offers of the present plan.
type ledger struct {
	regions []*Region
	// charged holds the charges of the regions that the plan charged, in pages of pageRegions
	// regions. The charges of all other regions are in the snapshot. Most plans charge few regions,
	// so a list of all regions would cost more than the rest of the plan.
	charged []*chargedPage
	// touched are the regions that the plan charged, in the order of the charges. It includes
	// regions whose charges were taken back later.
	touched *[]int32
}

const pageRegions = 32

type chargedPage [pageRegions]planCharges

// planCharges are the charges of a region in a plan. known: the plan charged the region. shared: the
// charges must be copied before they change.
type planCharges struct {
	charges       charges
	known, shared bool
}

// charges are the charges of one region, sorted by pool. Asks of different pools never share a node.
type charges []poolCharges

type poolCharges struct {
	pool  string
	total Resources
	// asks are sorted by hash. used is the sum of their shares.
	asks []askCharge
	used int64
}

// askCharge is the charge of one ask: n instances.
type askCharge struct {
	hash uint64
	n    int
	// share is n divided by the number of instances of this ask that would fit if the region had no
	// other ask, in billionths.
	share int64
}

// find returns the position of a pool, or where to insert it.
func (c charges) find(pool string) (int, bool) {
	return slices.BinarySearchFunc(c, pool, func(p poolCharges, pool string) int { return cmp.Compare(p.pool, pool) })
}

// find returns the position of an ask, or where to insert it.
func (p *poolCharges) find(hash uint64) (int, bool) {
	return slices.BinarySearchFunc(p.asks, hash, func(a askCharge, hash uint64) int { return cmp.Compare(a.hash, hash) })
}

const whole = 1_000_000_000

func newLedger(regions []*Region) *ledger {
	pages := (len(regions) + pageRegions - 1) / pageRegions
	return &ledger{regions: regions, charged: make([]*chargedPage, pages), touched: new([]int32)}
}

// of returns the charges of a region.
func (l *ledger) of(r int) charges {
	if page := l.charged[r/pageRegions]; page != nil && page[r%pageRegions].known {
		return page[r%pageRegions].charges
	}
	return l.regions[r].Charged.charges
}

// charge takes room for n instances in region r.
func (l *ledger) charge(r int, a Ask, hash uint64, n int) {
	if n <= 0 {
		return
	}
	page := &l.charged[r/pageRegions]
	if *page == nil {
		*page = new(chargedPage)
	}
	c := &(*page)[r%pageRegions]
	if !c.known || c.shared {
		*c = planCharges{charges: l.of(r).clone(), known: true}
	}
	c.charges.add(l.regions[r], a, hash, n)
	*l.touched = append(*l.touched, int32(r))
}

// add charges n instances, or releases them if n is negative.
func (c *charges) add(r *Region, a Ask, hash uint64, n int) {
	k, known := c.find(a.pool())
	if !known {
		*c = slices.Insert(*c, k, poolCharges{pool: a.pool()})
	}
	pool := &(*c)[k]
	i, known := pool.find(hash)
	if !known {
		pool.asks = slices.Insert(pool.asks, i, askCharge{hash: hash})
	}
	ask := &pool.asks[i]
	pool.used -= ask.share
	ask.n += n
	ask.share = whole
	if fits, _ := r.reported(a, hash); fits > ask.n {
		ask.share = whole / int64(fits) * int64(ask.n)
	}
	pool.total = pool.total.plus(a.Resources(), n)
	if ask.n > 0 {
		pool.used += ask.share
		return
	}
	pool.asks = slices.Delete(pool.asks, i, i+1)
	if len(pool.asks) == 0 {
		*c = slices.Delete(*c, k, k+1)
	}
}

// chargeAll makes the charges that the reports of their regions do not include.
func (l *ledger) chargeAll(regions regionList, all []Charge) {
	for _, c := range all {
		if r := regions.index(c.Region); r >= 0 && c.counts(regions[r]) {
			l.charge(r, *c.Ask, c.Hash, c.size(regions[r]))
		}
	}
}

// reported returns how many instances fit according to the region's report alone, and whether the
// number is an exact count.
func (r *Region) reported(a Ask, hash uint64) (n int, exact bool) {
	n, exact = r.Fits[hash]
	if exact {
		return max(0, n), true
	}
	if r.missingDriver(a) != "" {
		return 0, false
	}
	return a.fitsBins(r.Bins), false
}

// fits returns how many instances region r can take now, and whether the number comes from an exact
// count.
func (l *ledger) fits(r int, a Ask, hash uint64) (n int, exact bool) {
	return l.regions[r].fits(l.of(r), a, hash)
}

// fits returns how many instances the region can take beside the charges, and whether the number
// comes from an exact count. Charged instances of the same ask are subtracted one by one.
//
// For charged instances of other asks there are two cautious estimates, and the greater one counts.
// The first estimate divides the nodes among the asks. Each other ask gets the share of the region
// that its charged instances take: their number, divided by the number that fits into the whole
// region. The estimate counts what fits into the share that is left. The second estimate subtracts
// as many instances of this ask as have the same resources as the charged instances together. If
// the estimate is too high, the region returns the instances that do not fit.
func (r *Region) fits(charged charges, a Ask, hash uint64) (n int, exact bool) {
	n, exact = r.reported(a, hash)
	k, ok := charged.find(a.pool())
	if !ok {
		return n, exact
	}
	pool, same := &charged[k], askCharge{}
	if i, known := pool.find(hash); known {
		same = pool.asks[i]
	}
	var displaced int64
	others := pool.total.plus(a.Resources(), -same.n).dims()
	for d, need := range a.Resources().dims() {
		if need > 0 {
			displaced = max(displaced, (others[d]+need-1)/need)
		}
	}
	left := max(0, whole-(pool.used-same.share))
	// The shares were rounded down, so left may be up to a billionth too high.
	byShare := int64(n) * left / whole
	return max(0, int(max(byShare, int64(n)-displaced))-same.n), exact
}

// total returns the sum of the charges in all pools.
func (c charges) total() Resources {
	var sum Resources
	for i := range c {
		sum = sum.plus(c[i].total, 1)
	}
	return sum
}

// part is n instances of one ask.
type part struct {
	ask  Ask
	hash uint64
	n    int
}

// fitsTogether reports whether all parts fit into region r together.
func (l *ledger) fitsTogether(r int, parts []part) bool {
	trial := l.of(r).clone()
	for _, p := range parts {
		if n, _ := l.regions[r].fits(trial, p.ask, p.hash); n < p.n {
			return false
		}
		trial.add(l.regions[r], p.ask, p.hash, p.n)
	}
	return true
}

// Room says whether groups fit into regions before or after a plan. No group fits into the zero
// Room.
type Room struct {
	regions regionList
	ledger  *ledger
}

// NewRoom returns the room of the regions of a snapshot.
func NewRoom(s Snapshot) Room {
	m := Room{s.Regions, newLedger(s.Regions)}
	m.ledger.chargeAll(m.regions, s.Given)
	return m
}

// Rival is a group that waits for room: its ask, and the regions that it allows, as in RegionsSpec.
type Rival struct {
	Ask   Ask
	Allow []Selector
	// Decided says that the latest plan decided about the group and left it without a region.
	Decided bool
}

// Fits reports whether an instance of a waiting group fits into a region, and the group allows the
// region.
func (m Room) Fits(region string, v Rival) bool {
	i := m.regions.index(region)
	if i < 0 || !allowed(v.Allow, m.regions[i]) {
		return false
	}
	n, _ := m.ledger.fits(i, v.Ask, v.Ask.Hash())
	return n > 0
}

// Wants reports whether a waiting group may get room in a region that was too full for it before.
// left is the room after the latest plan. If the plan decided about the group and the region had room
// even after it, the region refuses the group for another reason.
func (m Room) Wants(region string, v Rival, left Room) bool {
	return m.Fits(region, v) && !(v.Decided && left.Fits(region, v))
}

// clone returns a copy. Both share the charges of a region until one of them changes these charges.
func (l *ledger) clone() *ledger {
	out := &ledger{regions: l.regions, charged: make([]*chargedPage, len(l.charged)), touched: l.touched}
	for i, page := range l.charged {
		if page == nil {
			continue
		}
		for k := range page {
			page[k].shared = true
		}
		same := *page
		out.charged[i] = &same
	}
	return out
}

// clone returns a copy with room for a first pool, and for one more ask in each pool.
func (c charges) clone() charges {
	out := append(make(charges, 0, max(1, len(c))), c...)
	for i := range out {
		out[i].asks = append(make([]askCharge, 0, len(c[i].asks)+1), c[i].asks...)
	}
	return out
}

// Charge is room that a slot takes, or will take, in a region.
type Charge struct {
	Region string
	// Key identifies the charge in the region's account.
	Key string
	// Generation: a report that includes this generation, or a later one, includes the charge.
	Generation int64
	Ask        *Ask // nobody may change it
	Hash       uint64
	// Count is the number of instances. A System charge takes one instance on each ready node
	// instead.
	Count  int
	System bool
}

// ChargesOf returns the charges of a slot: in the owner's region, and in the region that the slot
// will return to.
func ChargesOf(j *Job, s *region.Slot) (out []Charge) {
	g := j.group(s.Group)
	if g == nil {
		return nil
	}
	c := Charge{Ask: &g.Ask, Hash: g.hash(), Count: s.Count(), System: s.System}
	if s.ReturnTo != "" && !returnsHeld(s) {
		c.Region, c.Key, c.Generation = s.ReturnTo, s.Key()+" returns", math.MaxInt64
		out = append(out, c)
	}
	if s.State != region.Done && !s.Vacant {
		c.Region, c.Key, c.Generation = s.Region, s.Key(), s.Generation
		out = append(out, c)
	}
	return out
}

// SameCharges reports whether a slot of a job has the same charges before and after a change. An
// example of such a change is that the region accepts the slot.
func SameCharges(was, is *region.Slot) bool {
	done := was.State == region.Done
	return was.Region == is.Region && was.Group == is.Group && was.From == is.From && was.To == is.To && was.System == is.System &&
		was.Generation == is.Generation && was.Vacant == is.Vacant && done == (is.State == region.Done) && was.ReturnTo == "" && is.ReturnTo == ""
}

// counts reports whether the region's report does not include the charge.
func (c *Charge) counts(r *Region) bool { return c.Generation > r.SlotsRevision }

func (c *Charge) size(r *Region) int {
	if c.System {
		return r.NodesReady
	}
	return c.Count
}

// Charges is the sum of the charges of a region, as input of a plan. The zero value is no charge.
type Charges struct{ charges charges }

// Account is the account of one region over time: the charges since its latest report. Its cost
// grows with the number of changes, not with the number of the region's slots. The zero value is an
// empty account.
type Account struct {
	entries map[string]entry
	// most is the greatest number of entries since the memory of entries was allocated.
	most int
	sum  charges
	// shared: a plan may read sum, so sum must be copied before it changes.
	shared  bool
	changes uint64
}

// entry is a charge, with the number of instances that sum includes.
type entry struct {
	Charge
	n int
}

// Put adds a charge, or replaces the charge with the same key. r is the region with its latest
// report.
func (a *Account) Put(r *Region, c Charge) {
	a.Remove(r, c.Key)
	if !c.counts(r) {
		return
	}
	if a.entries == nil {
		a.entries = map[string]entry{}
	}
	n := c.size(r)
	a.entries[c.Key] = entry{c, n}
	a.most = max(a.most, len(a.entries))
	a.change().add(r, *c.Ask, c.Hash, n)
}

// Remove removes the charge with the key, if there is one.
func (a *Account) Remove(r *Region, key string) {
	if e, ok := a.entries[key]; ok {
		delete(a.entries, key)
		a.change().add(r, *e.Ask, e.Hash, -e.n)
	}
}

// Reported drops the charges that a new report includes.
func (a *Account) Reported(r *Region) {
	a.sum, a.shared = nil, false
	a.changes++
	for key, e := range a.entries {
		if !e.counts(r) {
			delete(a.entries, key)
			continue
		}
		e.n = e.size(r)
		a.entries[key] = e
		a.sum.add(r, *e.Ask, e.Hash, e.n)
	}
	if a.most > 4*len(a.entries) { // a map never gets smaller
		few := make(map[string]entry, len(a.entries)) // maps.Clone keeps the size
		maps.Copy(few, a.entries)
		a.entries, a.most = few, len(few)
	}
}

// Charges returns the present sum of the account.
func (a *Account) Charges() Charges {
	a.shared = true
	return Charges{a.sum}
}

// Without returns the sum of the account without some of its charges.
func (a *Account) Without(r *Region, some []Charge) Charges {
	sum := a.sum.clone()
	for _, c := range some {
		if e, ok := a.entries[c.Key]; ok && c.Region == r.Name {
			sum.add(r, *e.Ask, e.Hash, -e.n)
		}
	}
	return Charges{sum}
}

// Changes returns the number of changes of the sum.
func (a *Account) Changes() uint64 { return a.changes }

func (a *Account) change() *charges {
	a.changes++
	if a.shared {
		a.sum, a.shared = a.sum.clone(), false
	}
	return &a.sum
}
