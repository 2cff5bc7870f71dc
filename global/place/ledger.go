package place

import "maps"

// ledger holds, per region, what is assumed to be taken beyond the region's
// report: slots that the report does not include yet, and the offers of the
// plan in the making.
type ledger struct {
	regions []Region
	charged []charges
}

// charges of one region, by pool: asks of different pools share no node.
type charges map[string]poolCharges

type poolCharges struct {
	total Resources
	byAsk map[uint64]int
}

func newLedger(regions []Region) *ledger {
	return &ledger{regions: regions, charged: make([]charges, len(regions))}
}

// charge takes n instances out of a region.
func (l *ledger) charge(r int, a Ask, hash uint64, n int) {
	if n <= 0 {
		return
	}
	if l.charged[r] == nil {
		l.charged[r] = charges{}
	}
	pool := l.charged[r][a.pool()]
	if pool.byAsk == nil {
		pool.byAsk = map[uint64]int{}
	}
	pool.total = pool.total.plus(a.Resources(), n)
	pool.byAsk[hash] += n
	l.charged[r][a.pool()] = pool
}

// fits is how many instances a region can take now, and whether the number
// comes from an exact count. Instances of the same ask are subtracted one by
// one; others displace as much as their summed resources would, densely
// packed. That may promise a little too much, and the region returns the rest.
func (l *ledger) fits(r int, a Ask, hash uint64) (n int, exact bool) {
	n, exact = l.regions[r].Fits[hash]
	if !exact {
		n = a.fitsBins(l.regions[r].Bins)
	}
	pool, ok := l.charged[r][a.pool()]
	if !ok {
		return max(0, n), exact
	}
	same := pool.byAsk[hash]
	others := pool.total.plus(a.Resources(), -same).dims()
	var displaced int64
	for d, need := range a.Resources().dims() {
		if need > 0 {
			displaced = max(displaced, (others[d]+need-1)/need)
		}
	}
	return max(0, n-same-int(displaced)), exact
}

// total is what a region is charged in all pools.
func (l *ledger) total(r int) Resources {
	var sum Resources
	for _, p := range l.charged[r] {
		sum = sum.plus(p.total, 1) // a sum: the order of the map does not matter
	}
	return sum
}

// part is n instances of an ask.
type part struct {
	ask  Ask
	hash uint64
	n    int
}

// fitsTogether says whether a region holds all parts at once.
func (l *ledger) fitsTogether(r int, parts []part) bool {
	trial := &ledger{regions: l.regions[r : r+1], charged: []charges{l.charged[r].clone()}}
	for _, p := range parts {
		if n, _ := trial.fits(0, p.ask, p.hash); n < p.n {
			return false
		}
		trial.charge(0, p.ask, p.hash, p.n)
	}
	return true
}

func (c charges) clone() charges {
	out := make(charges, len(c))
	for pool, p := range c {
		out[pool] = poolCharges{total: p.total, byAsk: maps.Clone(p.byAsk)}
	}
	return out
}
