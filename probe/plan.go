package probe

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Limits of the plan. The zero value of a field is its default.
type Limits struct {
	// Budget is the number of probes per second over all peers, 0.01..1,000,000; default
	// 100. It is never exceeded, even with many peers or lost probes.
	Budget float64
	// Interval is the time between two probes of a peer in steady state; default 30 s. If
	// the budget is too small, the interval grows, so that every peer is still probed.
	Interval time.Duration
}

const (
	defaultBudget   = 100
	defaultInterval = 30 * time.Second

	// A peer that is new or reachable again is first probed quickProbes times at
	// quickInterval, so that the matrix fills within seconds.
	quickProbes   = 5
	quickInterval = 500 * time.Millisecond
	// Up to quickRepeats more such probes replace samples that were set aside.
	quickRepeats = 15
	// firstSpread is the time over which the first probes of peers that are
	// added together are spread.
	firstSpread = 100 * time.Millisecond

	// After a lost probe the next retryProbes probes follow at retryInterval, so that a
	// lost datagram and a dead region can be distinguished within seconds.
	retryProbes   = 4
	retryInterval = time.Second
	// The interval of a peer that still does not respond is multiplied by failingShare, so
	// that its return is noticed soon.
	failingShare = 1.0 / 3

	// Intervals vary by the share jitterShare, up and down, so that probers do not
	// synchronise.
	jitterShare = 0.1

	// The share steadyShare of the budget is for probes in steady state. The rest is for
	// first probes and retries. If the budget is too small, the share evenShare of the
	// steady part is divided evenly among the peers, and the rest by weight.
	steadyShare = 0.9
	evenShare   = 0.5

	// silentUDP is the number of UDP probes without a response after which TCP is used.
	// Every udpRetry-th probe still uses UDP, to notice when UDP works again.
	silentUDP = 3
	udpRetry  = 4
)

func (l Limits) withDefaults() Limits {
	if !(l.Budget > 0) {
		l.Budget = defaultBudget
	}
	l.Budget = min(max(l.Budget, 0.01), 1e6)
	if l.Interval <= 0 {
		l.Interval = defaultInterval
	}
	return l
}

// Probe says which peer to probe, when and how.
type Probe struct {
	At     time.Time
	Peer   string
	Method string
	// Address counts the lost probes that make the prober try another address. Modulo the
	// number of the peer's addresses it is the index of the address to use.
	Address int
}

// Plan decides when to probe which peer. Its methods are step functions: they get the time
// and a source of randomness (rnd returns 0..1) as arguments. A Plan is not safe for
// concurrent use.
type Plan struct {
	limits  Limits
	peers   map[string]*planned
	queue   queue
	waiting queue // probes that were due but did not fit, see PopDue
	tokens  float64
	filled  time.Time // when tokens was last updated
}

// planned is the plan's state of one peer.
type planned struct {
	next    Probe
	waiting bool
	index   int // the index in queue, or in waiting
	weight  float64
	every   time.Duration // the interval in steady state
	quick   int           // how many more probes follow at quickInterval
	repeats int           // how many more quick probes may replace samples that were set aside
	silent  int           // UDP probes sent since the last UDP response
	failed  int           // probes lost since the last response
	sent    int
	tcp     bool // the latest TCP probe got a response
}

// NewPlan returns a plan without peers.
func NewPlan(limits Limits) *Plan {
	return &Plan{limits: limits.withDefaults(), peers: make(map[string]*planned)}
}

// Every returns the present interval between two probes of a peer in steady state. It is
// longer than Limits.Interval if the budget is too small. It is 0 for an unknown peer.
func (p *Plan) Every(peer string) time.Duration {
	if e := p.peers[peer]; e != nil {
		return e.every
	}
	return 0
}

// Longest returns the longest possible interval between two probes of any peer, unless a
// probe of the peer is waiting. It is the longest interval in steady state plus the time
// to probe all peers once. It holds even if all other peers are preferred, new or failing.
func (p *Plan) Longest() time.Duration {
	n := float64(len(p.peers))
	even := max(p.limits.Interval, seconds(n/(p.limits.Budget*steadyShare*evenShare)))
	return seconds((1+jitterShare)*even.Seconds() + (n+1)/p.limits.Budget)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// SetPeers replaces the peers. Remaining peers keep the due time of their next probe.
// Waiting probes return to the queue.
func (p *Plan) SetPeers(names []string, now time.Time, rnd func() float64) {
	p.refill(now)
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	peers := make(map[string]*planned, len(names))
	p.queue, p.waiting = p.queue[:0], p.waiting[:0]
	for _, name := range names {
		e := p.peers[name]
		if e == nil {
			at := now.Add(time.Duration(rnd() * float64(firstSpread)))
			e = &planned{next: Probe{At: at, Peer: name, Method: UDP}, quick: quickProbes, repeats: quickRepeats}
		}
		e.index, e.waiting = len(p.queue), false
		peers[name] = e
		p.queue = append(p.queue, e)
	}
	p.peers = peers
	heap.Init(&p.queue)
	p.share()
}

// Prefer sets the weight of each peer, 0..1. Missing peers have 0. Weights count only if
// the budget is too small. Then half of the probes in steady state are divided evenly, and
// half in proportion to the weights. No peer is probed more often than Limits.Interval
// says. Probes that are planned already keep their time.
func (p *Plan) Prefer(weights map[string]float64) {
	for name, e := range p.peers {
		e.weight = min(max(weights[name], 0), 1)
		if math.IsNaN(e.weight) {
			e.weight = 0
		}
	}
	p.share()
}

// share computes the steady interval of each peer.
func (p *Plan) share() {
	steady := p.limits.Budget * steadyShare
	most := 1 / p.limits.Interval.Seconds() // probes per second of one peer
	n := float64(len(p.peers))
	if n*most <= steady {
		for _, e := range p.peers {
			e.every = p.limits.Interval
		}
		return
	}
	rate := func(e *planned, scale float64) float64 { return evenShare*steady/n + scale*e.weight }
	// A peer that reaches the maximum does not use its whole share, so the other peers get
	// more.
	byWeight := make([]*planned, 0, len(p.peers))
	for _, e := range p.peers {
		byWeight = append(byWeight, e)
	}
	slices.SortFunc(byWeight, func(a, b *planned) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), strings.Compare(a.next.Peer, b.next.Peer))
	})
	var weights float64
	for _, e := range slices.Backward(byWeight) {
		weights += e.weight
	}
	left, scale := (1-evenShare)*steady, 0.0
	full := 0 // number of peers that reach the maximum
	for ; full < len(byWeight) && byWeight[full].weight > 0; full++ {
		scale = left / weights
		if rate(byWeight[full], scale) < most {
			break
		}
		left -= most - rate(byWeight[full], 0)
		weights -= byWeight[full].weight
		scale = 0
	}
	if scale > 0 {
		left = 0
	}
	rest := max(0, left) / max(1, n-float64(full)) // not 0 if no peer is preferred, or if all preferred peers have the maximum
	for i, e := range byWeight {
		r := most
		if i >= full {
			r = min(most, rate(e, scale)+rest)
		}
		e.every = max(p.limits.Interval, seconds(1/r))
	}
}

// PopDue returns the probes to send now, as many as the budget allows, the longest due
// first. again is the time to call PopDue again; zero if no probe is queued. fits is
// called in the order of sending. A probe that does not fit waits until Resume. It keeps
// its due time and does not delay other probes.
func (p *Plan) PopDue(now time.Time, rnd func() float64, fits func(Probe) bool) (due []Probe, again time.Time) {
	p.refill(now)
	for len(p.queue) > 0 && p.tokens >= 1 && !p.queue[0].next.At.After(now) {
		e := p.queue[0]
		if !fits(e.next) {
			p.move(e, true)
			continue
		}
		p.tokens--
		due = append(due, e.next)
		p.sent(e, now, rnd)
		heap.Fix(&p.queue, e.index)
	}
	if len(p.queue) == 0 {
		return due, time.Time{}
	}
	again = p.queue[0].next.At
	if p.tokens < 1 {
		// Wait until the budget allows a few probes, because waking up costs more than a
		// probe.
		wait := seconds((max(1, p.limits.Budget/20) - p.tokens) / p.limits.Budget)
		if refilled := now.Add(wait + time.Microsecond); again.Before(refilled) {
			again = refilled
		}
	}
	return due, again
}

// Waiting returns the number of probes that did not fit and wait.
func (p *Plan) Waiting() int { return len(p.waiting) }

// Resume moves up to count waiting probes back to the queue, the longest due first.
func (p *Plan) Resume(count int) {
	for ; count > 0 && len(p.waiting) > 0; count-- {
		p.move(p.waiting[0], false)
	}
}

// move makes a peer's next probe wait, or moves it back to the queue.
func (p *Plan) move(e *planned, hold bool) {
	from, to := &p.waiting, &p.queue
	if hold {
		from, to = to, from
	}
	heap.Remove(from, e.index)
	e.waiting = hold
	heap.Push(to, e)
}

// refill fills the token bucket, which holds the budget of a tenth of a second. If the
// clock was set back, the due times are set back by the same time.
func (p *Plan) refill(now time.Time) {
	full := max(1, p.limits.Budget/10)
	gone := now.Sub(p.filled)
	switch {
	case p.filled.IsZero():
		p.tokens = full
	case gone >= 0:
		p.tokens = min(full, p.tokens+gone.Seconds()*p.limits.Budget)
	default:
		for _, e := range p.peers {
			e.next.At = e.next.At.Add(gone)
		}
	}
	p.filled = now
}

// sent plans the peer's next probe after a probe was sent.
func (p *Plan) sent(e *planned, now time.Time, rnd func() float64) {
	e.sent++
	if e.next.Method == UDP {
		e.silent++
	}
	e.quick = max(0, e.quick-1)
	every := e.every
	switch {
	case e.quick > 0:
		every = quickInterval
	case e.failed > 0:
		every = time.Duration(float64(every) * failingShare)
	}
	e.next.At = now.Add(jittered(every, rnd))
	e.next.Method = method(e)
}

func method(e *planned) string {
	if e.silent < silentUDP || e.sent%udpRetry == 0 {
		return UDP
	}
	return TCP
}

func jittered(d time.Duration, rnd func() float64) time.Duration {
	return time.Duration(float64(d) * (1 + jitterShare*(2*rnd()-1)))
}

// Answered records a response from a peer. A peer that seemed unreachable is first probed
// quickly again.
func (p *Plan) Answered(peer, method string, now time.Time, rnd func() float64) {
	e := p.peers[peer]
	if e == nil {
		return
	}
	if method == UDP {
		e.silent = 0
		e.next.Method = UDP
		if e.waiting {
			p.move(e, false) // a waiting probe is usually a TCP probe
		}
	} else {
		e.tcp = true
	}
	if e.failed >= UnreachableAfter {
		e.quick, e.repeats = quickProbes, quickRepeats
		p.sooner(e, now.Add(jittered(quickInterval, rnd)))
	}
	e.failed = 0
}

// SetAside records that a sample of a peer was set aside, and plans a quick probe instead, up to
// quickRepeats times since the peer was new or reachable again. Otherwise the first round trips of a
// peer of a busy server would come from few samples, or from none, until the next interval.
func (p *Plan) SetAside(peer string, now time.Time, rnd func() float64) {
	e := p.peers[peer]
	if e == nil || e.repeats == 0 {
		return
	}
	e.repeats--
	e.quick++
	p.sooner(e, now.Add(jittered(quickInterval, rnd)))
}

// Lost records that a probe got no response in time. The next probe is sent soon, and to
// the next address. While TCP works, a lost UDP probe does not count.
func (p *Plan) Lost(peer, lostMethod string, now time.Time, rnd func() float64) {
	e := p.peers[peer]
	if e == nil {
		return
	}
	if lostMethod == TCP {
		e.tcp = false
	} else if e.tcp {
		return
	}
	e.next.Method = method(e)
	e.failed++
	e.next.Address++
	if e.failed <= retryProbes {
		p.sooner(e, now.Add(jittered(retryInterval, rnd)))
	}
}

// sooner sets the time of the next probe if that makes it earlier.
func (p *Plan) sooner(e *planned, at time.Time) {
	if at.Before(e.next.At) {
		e.next.At = at
		if e.waiting {
			heap.Fix(&p.waiting, e.index)
		} else {
			heap.Fix(&p.queue, e.index)
		}
	}
}

// Upcoming returns each peer's next probe, the earliest first.
func (p *Plan) Upcoming() []Probe {
	all := make([]Probe, 0, len(p.peers))
	for _, e := range p.peers {
		all = append(all, e.next)
	}
	slices.SortFunc(all, earlier)
	return all
}

func earlier(a, b Probe) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Peer, b.Peer)) }

func (p Probe) String() string {
	return fmt.Sprintf("%s %s address %d", p.Peer, p.Method, p.Address)
}

// queue is a heap with the earliest probe on top. Probes with equal times are ordered by
// name.
type queue []*planned

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return earlier(q[i].next, q[j].next) < 0 }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *queue) Push(x any) {
	e := x.(*planned)
	e.index = len(*q)
	*q = append(*q, e)
}
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}
