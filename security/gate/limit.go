package gate

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits bound what one principal may do at a server, in calls each second. 0: not bounded.
type Limits struct {
	// Calls bounds calls, and streams that begin. Submits bounds the jobs that are submitted or
	// planned. A quiet principal may make twice as many at once.
	Calls, Submits float64
}

// maxLimited bounds the principals whose rates are remembered. The forgotten ones begin again.
const maxLimited = 4096

// limiter remembers the rates of principals.
type limiter struct {
	limits Limits
	mu     sync.Mutex
	young  map[string]*rates
	old    map[string]*rates
}

// rates are those of one principal. A nil limiter bounds nothing.
type rates struct{ calls, submits *rate.Limiter }

func newRate(each float64) *rate.Limiter {
	if each <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(each), max(1, int(2*each)))
}

// of returns the rates of a principal.
func (l *limiter) of(name string) *rates {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.young[name]; r != nil {
		return r
	}
	r := l.old[name]
	if r == nil {
		r = &rates{calls: newRate(l.limits.Calls), submits: newRate(l.limits.Submits)}
	}
	if len(l.young) >= maxLimited/2 {
		l.young, l.old = nil, l.young
	}
	if l.young == nil {
		l.young = map[string]*rates{}
	}
	l.young[name] = r
	return r
}

// wait takes one of a rate. It returns how long the caller must wait before it tries again, and takes
// nothing then.
func wait(l *rate.Limiter, now time.Time) time.Duration {
	if l == nil || l.AllowN(now, 1) {
		return 0
	}
	r := l.ReserveN(now, 1)
	defer r.CancelAt(now)
	return max(r.DelayFrom(now), time.Millisecond)
}
