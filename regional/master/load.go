package master

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// freshStats is how many intervals of statistics a node may miss before its use is unknown. A node that
// is only slow to report keeps its score.
const freshStats = 4

// loads keeps what the policies of pools weigh. It reads the statistics of the nodes at most once in an
// interval, and only while a pool has a policy. It is safe for concurrent use.
type loads struct {
	clock    func() time.Duration
	stats    func(id string, now time.Duration) (wire.NodeStats, bool)
	interval time.Duration
	log      *slog.Logger

	mu       sync.Mutex
	policies []policyVersion // the documents from which weights was read
	weights  map[string]pools.Weights
	load     *pools.Load
	readAt   time.Duration
}

// policyVersion names a version of the policy of a pool.
type policyVersion struct {
	pool    string
	version uint64
}

// at returns the load for a plan over a view. It is nil if no pool has a policy.
func (l *loads) at(view *state.View) *pools.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.readPolicies(view)
	if len(l.weights) == 0 {
		l.load = nil
		return nil
	}
	if now := l.clock(); changed || now-l.readAt >= l.interval {
		l.readAt = now
		l.load = pools.Next(l.load, l.weights, view.Nodes(), func(id string) (pools.Measured, bool) { return l.measured(id, now) })
	}
	return l.load
}

// measured returns what a node measured lately.
func (l *loads) measured(id string, now time.Duration) (pools.Measured, bool) {
	s, known := l.stats(id, now)
	memory := s.MemoryUsed + s.MemoryAvailable
	if !known || s.Age > freshStats*l.interval || memory <= 0 {
		return pools.Measured{}, false
	}
	return pools.Measured{CPU: s.CPU, Memory: s.MemoryUsed / memory}, true
}

// readPolicies reads the policies if a document has changed. It reports whether one has.
func (l *loads) readPolicies(view *state.View) bool {
	i, same := 0, true
	for d := range view.Documents(wire.PoolPrefix) {
		same = same && i < len(l.policies) && l.policies[i].version == d.Version && wire.PoolPrefix+l.policies[i].pool == d.Key
		i++
	}
	if same && i == len(l.policies) {
		return false
	}
	l.policies, l.weights = l.policies[:0], map[string]pools.Weights{}
	for d := range view.Documents(wire.PoolPrefix) {
		pool := strings.TrimPrefix(d.Key, wire.PoolPrefix)
		l.policies = append(l.policies, policyVersion{pool, d.Version})
		w, err := wire.ReadWeights(d)
		if err != nil {
			l.log.Error("the policy of a pool is unreadable and does not count: set it again", "pool", pool, "error", err)
			continue
		}
		l.weights[pool] = w
	}
	return true
}
