package retry

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Category is the kind of a failure: the name of the protocol's FailureCategory in lower case.
type Category string

// The categories. An agent of an earlier version reports none, which counts as App.
const (
	App      Category = "app"
	OOM      Category = "oom"
	Image    Category = "image"
	Config   Category = "config"
	Start    Category = "start"
	Timeout  Category = "timeout"
	NodeLost Category = "node_lost"
)

// Failure is why an attempt has failed.
type Failure struct {
	Category Category
	Task     string // the task that failed; empty: the whole allocation
	// ExitCode and Signal say how the task ended by itself.
	ExitCode int32
	Signal   int32
	// Permanent: another attempt on the same node would fail in the same way.
	Permanent bool
}

// Rule says what happens after the failures that meet each of its conditions. A list without
// entries is no condition.
type Rule struct {
	ExitCodes  []int32
	Signals    []int32
	Categories []Category
	Fail       bool // the instance has failed
	// Attempts bounds the retries because of this rule. Less than 0: only the policy bounds them.
	Attempts int32
	// The back-off doubles from From up to To.
	From time.Duration
	To   time.Duration
	// MemoryMilli is the factor of the memory of the next attempt after a failure of the category OOM, in
	// thousandths. 0: the memory stays. MemoryLimit bounds the memory, in bytes. 0: no limit.
	MemoryMilli int64
	MemoryLimit int64
	// OtherRegion: the next attempt is in another region.
	OtherRegion bool
}

// Policy is the retry policy of a group. The first rule that matches decides. Without one, Default
// decides.
type Policy struct {
	Attempts int32 // most retries of an instance
	Rules    []Rule
	Default  Rule
	// MemoryBytes is the memory of an instance without MemoryMilli of a rule.
	MemoryBytes int64
}

// Record is what the decisions so far leave behind in an instance.
type Record struct {
	// Last is the latest failure. Rule is the number of the rule that decided about it, from 1, or 0.
	Last Failure
	Rule int32
	// ByRule counts the retries because of each rule.
	ByRule []int32
	// Permanent counts the permanent failures in a row.
	Permanent int32
	// Attempts is Policy.Attempts at the latest failure.
	Attempts int32
	// MemoryBytes is the memory of the next attempts. 0: what the group asks for.
	MemoryBytes int64
	// Leave: the next attempt is in another region.
	Leave bool
}

// Used is what the failed attempts of an instance have used up of its policy. It moves with the instance
// to another region.
type Used struct {
	Failures    int32 // in a row
	ByRule      []int32
	Permanent   int32
	MemoryBytes int64
	// Exhausted: no attempts are left.
	Exhausted bool
}

// UsedOf returns what an instance has used. The record may be nil.
func UsedOf(r *Record, failures int32, exhausted bool) Used {
	out := Used{Failures: failures, Exhausted: exhausted}
	if r != nil {
		out.ByRule, out.Permanent, out.MemoryBytes = r.ByRule, r.Permanent, r.MemoryBytes
	}
	return out
}

// Nothing reports whether no attempt has failed.
func (u *Used) Nothing() bool { return u.Failures == 0 && !u.Exhausted }

// Join returns the greater use of each bound. An instance that an earlier owner retains may be stale.
func (u Used) Join(other Used) Used {
	u.Failures, u.Permanent = max(u.Failures, other.Failures), max(u.Permanent, other.Permanent)
	u.MemoryBytes, u.Exhausted = max(u.MemoryBytes, other.MemoryBytes), u.Exhausted || other.Exhausted
	rules := make([]int32, max(len(u.ByRule), len(other.ByRule)))
	for i := range rules {
		if i < len(u.ByRule) {
			rules[i] = u.ByRule[i]
		}
		if i < len(other.ByRule) {
			rules[i] = max(rules[i], other.ByRule[i])
		}
	}
	u.ByRule = rules
	return u
}

// Record returns the record of an instance that arrives with its use.
func (u *Used) Record(p *Policy) *Record {
	out := &Record{ByRule: u.ByRule, Permanent: u.Permanent, Attempts: p.Attempts, MemoryBytes: u.MemoryBytes}
	if plant.Is(plant.MemoryForgotten) {
		out.MemoryBytes = 0
	}
	return out
}

// Verdict says what a decision means.
type Verdict int

// The verdicts.
const (
	Again     Verdict = iota // another attempt
	Exhausted                // no attempts are left
	ByRule                   // a rule lets the instance fail
	Useless                  // a permanent error: a retry would fail, too
)

// Decision is what follows a failure.
type Decision struct {
	Verdict Verdict
	Wait    time.Duration // only with Again: the time before the next attempt
}

// maxPermanent is how often in a row a permanent error may happen. Another node may have what the
// first one lacks, so there is one retry, without a back-off.
const maxPermanent = 2

// Decide returns what follows a failure, and the record after it. failures counts the failures of the
// instance in a row, including this one.
func Decide(p *Policy, was *Record, f Failure, failures int32) (Decision, *Record) {
	r := &Record{Last: f, Attempts: p.Attempts}
	if was != nil {
		r.ByRule, r.Permanent, r.MemoryBytes = slices.Clone(was.ByRule), was.Permanent, was.MemoryBytes
	}
	rule := &p.Default
	for i := range p.Rules {
		if p.Rules[i].matches(f) && (r.Rule == 0 || plant.Is(plant.LastRule)) {
			rule, r.Rule = &p.Rules[i], int32(i+1)
		}
	}
	r.Permanent++
	if !f.Permanent {
		r.Permanent = 0
	}
	times := failures
	if r.Rule > 0 {
		r.ByRule = append(r.ByRule, make([]int32, max(0, int(r.Rule)-len(r.ByRule)))...)
		times = r.ByRule[r.Rule-1] + 1
	}
	switch {
	case rule.Fail:
		return Decision{Verdict: ByRule}, r
	case failures > p.Attempts, rule.Attempts >= 0 && times > rule.Attempts:
		return Decision{Verdict: Exhausted}, r
	case r.Rule == 0 && r.Permanent >= maxPermanent:
		return Decision{Verdict: Useless}, r
	}
	if r.Rule > 0 {
		r.ByRule[r.Rule-1] = times
	}
	if rule.MemoryMilli > 0 && f.Category == OOM {
		r.MemoryBytes = more(max(r.MemoryBytes, p.MemoryBytes), rule.MemoryMilli, rule.MemoryLimit)
	}
	r.Leave = rule.OtherRegion
	if r.Rule == 0 && f.Permanent {
		return Decision{}, r
	}
	return Decision{Wait: Backoff(rule.From, rule.To, times)}, r
}

func (r *Rule) matches(f Failure) bool {
	category := f.Category
	if category == "" {
		category = App
	}
	switch {
	case len(r.ExitCodes) > 0 && (f.ExitCode == 0 || !slices.Contains(r.ExitCodes, f.ExitCode)):
		return false
	case len(r.Signals) > 0 && (f.Signal == 0 || !slices.Contains(r.Signals, f.Signal)):
		return false
	}
	return len(r.Categories) == 0 || slices.Contains(r.Categories, category)
}

// more returns memory times a factor, at most limit. It never returns less memory.
func more(memory, milli, limit int64) int64 {
	next := memory/1000*milli + memory%1000*milli/1000
	if limit > 0 && !plant.Is(plant.MemoryUnbounded) {
		next = min(next, limit)
	}
	return max(memory, next)
}

// Backoff returns the pause after the n-th failure, n ≥ 1: from × 2^(n-1), at most to.
func Backoff(from, to time.Duration, n int32) time.Duration {
	d := from
	for ; n > 1 && d < to; n-- {
		d *= 2
	}
	if to > 0 {
		d = min(d, to)
	}
	return d
}
