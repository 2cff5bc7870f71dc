package probe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of the plan. The zero value of a field is its default.
type Limits struct {
	// Budget in probes per second over all peers; default 100.
	Budget float64
	// Interval between two probes of a peer in steady state; default 30 s. It
	// grows when the budget binds: all peers still get their turn.
	Interval time.Duration
}

const (
	defaultBudget   = 100
	defaultInterval = 30 * time.Second

	// quickProbes, quickInterval: a peer that is new, or has come back, is
	// probed this often at first, so that the matrix fills within seconds.
	quickProbes   = 5
	quickInterval = 500 * time.Millisecond
	// firstSpread is the time over which the first probes of peers that become
	// known together are spread.
	firstSpread = 100 * time.Millisecond

	// retryProbes, retryInterval: after a lost probe the next ones come soon,
	// so that one lost datagram and a dead region are told apart in seconds.
	retryProbes   = 4
	retryInterval = time.Second
	// failingShare: a peer that still does not answer is probed at this share
	// of the interval, to see soon that it is back.
	failingShare = 1.0 / 3

	// jitterShare of an interval, up and down, keeps probers from falling into
	// step.
	jitterShare = 0.1

	// silentUDP: after so many UDP probes without an answer TCP takes over;
	// every udpRetry-th probe is still UDP, to see when it works again.
	silentUDP = 3
	udpRetry  = 4
)

func (l Limits) withDefaults() Limits {
	if l.Budget <= 0 {
		l.Budget = defaultBudget
	}
	if l.Interval <= 0 {
		l.Interval = defaultInterval
	}
	return l
}

// Probe says whom to probe, when and how.
type Probe struct {
	At     time.Time
	Peer   string
	Method string
	// Address counts up each time that a probe was lost: take it modulo the
	// number of the peer's addresses.
	Address int
}

// Plan decides whom to probe when. It is a step function: times are arguments,
// and so is randomness (rnd gives 0..1). Not safe for concurrent use.
type Plan struct {
	limits Limits
	peers  []planned // by name
	tokens float64
	filled time.Time // when tokens was last right
}

// planned is what the plan knows of a peer.
type planned struct {
	next   Probe
	quick  int // probes left at quickInterval
	silent int // UDP probes sent since the last UDP answer
	failed int // probes lost since the last answer
	sent   int
	tcp    bool // the latest TCP probe was answered
}

// NewPlan has no peers.
func NewPlan(limits Limits) *Plan {
	return &Plan{limits: limits.withDefaults()}
}

// Interval is the present one between two probes of a peer: longer than the
// limit when the budget binds.
func (p *Plan) Interval() time.Duration {
	turn := time.Duration(float64(len(p.peers)) / p.limits.Budget * float64(time.Second))
	return max(p.limits.Interval, turn)
}

// SetPeers replaces the peers; those that stay keep their turn.
func (p *Plan) SetPeers(names []string, now time.Time, rnd func() float64) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	peers := make([]planned, 0, len(names))
	for _, name := range names {
		if i, known := p.find(name); known {
			peers = append(peers, p.peers[i])
			continue
		}
		at := now.Add(time.Duration(rnd() * float64(firstSpread)))
		peers = append(peers, planned{next: Probe{At: at, Peer: name, Method: UDP}, quick: quickProbes})
	}
	p.peers = peers
}

func (p *Plan) find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.peers, name, func(e planned, name string) int {
		return strings.Compare(e.next.Peer, name)
	})
}

// Take gives the probes to send now, the longest due first, as far as the
// budget goes, and the time to ask again; that is zero without peers.
func (p *Plan) Take(now time.Time, rnd func() float64) (due []Probe, again time.Time) {
	p.refill(now)
	turn := make([]int, 0, 8)
	for i := range p.peers {
		if !p.peers[i].next.At.After(now) {
			turn = append(turn, i)
		}
	}
	slices.SortStableFunc(turn, func(a, b int) int {
		return p.peers[a].next.At.Compare(p.peers[b].next.At)
	})
	for _, i := range turn {
		if p.tokens < 1 {
			break
		}
		p.tokens--
		due = append(due, p.peers[i].next)
		p.sent(&p.peers[i], now, rnd)
	}
	for i := range p.peers {
		if at := p.peers[i].next.At; again.IsZero() || at.Before(again) {
			again = at
		}
	}
	if len(p.peers) > 0 && p.tokens < 1 {
		wait := time.Duration((1 - p.tokens) / p.limits.Budget * float64(time.Second))
		if refilled := now.Add(wait + time.Microsecond); again.Before(refilled) {
			again = refilled
		}
	}
	return due, again
}

// refill follows the token bucket; it holds a tenth of a second's budget.
func (p *Plan) refill(now time.Time) {
	full := max(1, p.limits.Budget/10)
	if p.filled.IsZero() {
		p.tokens = full
	} else if gone := now.Sub(p.filled); gone > 0 {
		p.tokens = min(full, p.tokens+gone.Seconds()*p.limits.Budget)
	}
	p.filled = now
}

// sent plans the probe after the one just taken.
func (p *Plan) sent(e *planned, now time.Time, rnd func() float64) {
	e.sent++
	if e.next.Method == UDP {
		e.silent++
	}
	e.quick = max(0, e.quick-1)
	every := p.Interval()
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

// Answered notes an answer. A peer that had seemed gone is probed quickly
// again.
func (p *Plan) Answered(peer, method string, now time.Time, rnd func() float64) {
	i, ok := p.find(peer)
	if !ok {
		return
	}
	e := &p.peers[i]
	if method == UDP {
		e.silent = 0
		e.next.Method = UDP
	} else {
		e.tcp = true
	}
	if e.failed >= UnreachableAfter {
		e.quick = quickProbes
		e.sooner(now.Add(jittered(quickInterval, rnd)))
	}
	e.failed = 0
}

// Lost notes that a probe was not answered in time: the next goes to the next
// address, and soon. Where TCP works a lost UDP probe says nothing of the peer.
func (p *Plan) Lost(peer, lostMethod string, now time.Time, rnd func() float64) {
	i, ok := p.find(peer)
	if !ok {
		return
	}
	e := &p.peers[i]
	if lostMethod == TCP {
		e.tcp = false
	} else if e.tcp {
		return
	}
	e.next.Method = method(e)
	e.failed++
	e.next.Address++
	if e.failed <= retryProbes {
		e.sooner(now.Add(jittered(retryInterval, rnd)))
	}
}

// sooner moves the next probe forward, never back.
func (e *planned) sooner(at time.Time) {
	if at.Before(e.next.At) {
		e.next.At = at
	}
}

// Upcoming lists each peer's next probe, the earliest first.
func (p *Plan) Upcoming() []Probe {
	all := make([]Probe, 0, len(p.peers))
	for _, e := range p.peers {
		all = append(all, e.next)
	}
	slices.SortStableFunc(all, func(a, b Probe) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Peer, b.Peer))
	})
	return all
}

func (p Probe) String() string {
	return fmt.Sprintf("%s %s address %d", p.Peer, p.Method, p.Address)
}
