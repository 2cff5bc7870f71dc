package place

import "maps"

// ledger holds, per region, the capacity that is assumed to be taken beyond the
// region's report: slots that the report does not include yet, and the offers
// of the present plan.
type ledger struct {
	regions []Region
	charged []charges
}

// charges of one region, by pool: asks of different pools never share a node.
type charges map[string]poolCharges

type poolCharges struct {
	total Resources
	byAsk map[uint64]askCharge
	// used is the sum of the asks' shares.
	used int64
}

// askCharge is the charge of one ask.
type askCharge struct {
	n int
	// share is n divided by the number of instances of this ask that would fit if
	// the region had no other ask, in billionths of the pool.
	share int64
}

const whole = 1_000_000_000

func newLedger(regions []Region) *ledger {
	return &ledger{regions: regions, charged: make([]charges, len(regions))}
}

// charge takes room for n instances of a region.
func (l *ledger) charge(r int, a Ask, hash uint64, n int) {
	if n <= 0 {
		return
	}
	if l.charged[r] == nil {
		l.charged[r] = charges{}
	}
	pool := l.charged[r][a.pool()]
	if pool.byAsk == nil {
		pool.byAsk = map[uint64]askCharge{}
	}
	c := pool.byAsk[hash]
	pool.used -= c.share
	c.n += n
	c.share = whole
	if fits, _ := l.reported(r, a, hash); fits > c.n {
		c.share = whole / int64(fits) * int64(c.n)
	}
	pool.used += c.share
	pool.byAsk[hash] = c
	pool.total = pool.total.plus(a.Resources(), n)
	l.charged[r][a.pool()] = pool
}

// reported returns how many instances fit according to the region's report alone,
// and whether the number is an exact count.
func (l *ledger) reported(r int, a Ask, hash uint64) (n int, exact bool) {
	n, exact = l.regions[r].Fits[hash]
	if exact {
		return max(0, n), true
	}
	if l.regions[r].missingDriver(a) != "" {
		return 0, false
	}
	return a.fitsBins(l.regions[r].Bins), false
}

// fits returns how many instances a region can take now, and whether the number
// comes from an exact count. Charged instances of the same ask are subtracted
// one by one. For other asks there are two cautious estimates, and the greater
// one counts. The first is the share of the region that the other asks leave (the
// nodes can always be split among the asks). The second subtracts as many
// instances as have the summed resources of the other asks, densely packed. If
// both estimates are too high, the region returns the instances that do not fit.
func (l *ledger) fits(r int, a Ask, hash uint64) (n int, exact bool) {
	n, exact = l.reported(r, a, hash)
	pool, ok := l.charged[r][a.pool()]
	if !ok {
		return n, exact
	}
	same := pool.byAsk[hash]
	var displaced int64
	others := pool.total.plus(a.Resources(), -same.n).dims()
	for d, need := range a.Resources().dims() {
		if need > 0 {
			displaced = max(displaced, (others[d]+need-1)/need)
		}
	}
	left := max(0, whole-(pool.used-same.share))
	// The shares were rounded down, so up to a billionth too much may be left.
	byShare := int64(n) * left / whole
	return max(0, int(max(byShare, int64(n)-displaced))-same.n), exact
}

// total returns the region's charge in all pools.
func (l *ledger) total(r int) Resources {
	var sum Resources
	for _, p := range l.charged[r] {
		sum = sum.plus(p.total, 1) // a sum does not depend on the order of the map
	}
	return sum
}

// part is a number of instances of one ask.
type part struct {
	ask  Ask
	hash uint64
	n    int
}

// fitsTogether reports whether a region holds all parts at once.
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

func (l *ledger) clone() *ledger {
	out := &ledger{regions: l.regions, charged: make([]charges, len(l.charged))}
	for i, c := range l.charged {
		out.charged[i] = c.clone()
	}
	return out
}

func (c charges) clone() charges {
	if c == nil {
		return nil
	}
	out := make(charges, len(c))
	for pool, p := range c {
		p.byAsk = maps.Clone(p.byAsk)
		out[pool] = p
	}
	return out
}
