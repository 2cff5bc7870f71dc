package attempts

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// Key names an instance. Region is set for an instance of a region's own job.
type Key struct {
	Job, Group string
	Index      int32
	Region     string
}

// At is where an attempt is, and what it belongs to.
type At struct {
	Region                   string
	Run, Version, Generation int64
}

// Failure is an attempt that has failed.
type Failure struct {
	Alloc, Node, Region string
	retry.Failure
}

// Life is what is known of an instance in one run and version of its job.
type Life struct {
	At
	// Failures are those that count.
	Failures []Failure
	// Over: no attempts are left. Since is the true time at which that was committed.
	Over  bool
	Since int64
	// Unsure: there may be failures that are not among Failures.
	Unsure bool

	byRule map[int]int32
	memory int64 // of the next attempt; 0: what the group asks for
	// left is where the attempt was after which the next one is in another region; nil: it may be anywhere. leftAt is the
	// time of the failure, by the clock of the log.
	left   *At
	leftAt int64
}

// Checker knows the attempts of all instances.
type Checker struct {
	// Stay: attempts do not move from region to region, because some servers are of an earlier version.
	Stay  bool
	lives map[Key]*Life
}

// Of returns what is known of an instance, or nil.
func (j *Checker) Of(k Key) *Life { return j.lives[k] }

// All returns all instances. The caller sorts them.
func (j *Checker) All() map[Key]*Life { return j.lives }

// Forget forgets the failures of an instance, because some that are to count may be lost, or count elsewhere.
func (j *Checker) Forget(k Key) {
	if l := j.lives[k]; l != nil {
		j.lives[k] = &Life{At: l.At, Unsure: true}
	}
}

// Doubt notes an attempt in a region whose log may lack failures of its instance.
func (j *Checker) Doubt(k Key, at At) {
	if !j.stale(k, at) {
		j.at(k, at)
		j.Forget(k)
	}
}

// ForgetWhere forgets the failures of some instances.
func (j *Checker) ForgetWhere(of func(Key, *Life) bool) {
	for k, l := range j.lives {
		if of(k, l) {
			j.Forget(k)
		}
	}
}

// at returns the life to which an attempt belongs.
func (j *Checker) at(k Key, at At) *Life {
	l := j.lives[k]
	switch {
	case l == nil:
		l = &Life{Unsure: j.Stay}
	case l.Run != at.Run:
		l = &Life{Unsure: j.Stay}
	case l.Version != at.Version, j.Stay && (l.Region != at.Region || l.Generation != at.Generation):
		l = &Life{Unsure: true}
	}
	if j.lives == nil {
		j.lives = map[Key]*Life{}
	}
	j.lives[k], l.At = l, at
	return l
}

// stale reports whether an attempt is of an owner that has lost the instance since, or of an earlier run.
func (j *Checker) stale(k Key, at At) bool {
	l := j.lives[k]
	return l != nil && (at.Run < l.Run || at.Run == l.Run && at.Generation < l.Generation)
}

// Failed notes that an attempt has failed, at a time of the log. It returns what is known of the instance after that.
func (j *Checker) Failed(k Key, at At, p *retry.Policy, f Failure, now int64) *Life {
	if j.stale(k, at) {
		return &Life{At: at, Unsure: true}
	}
	l := j.at(k, at)
	l.Failures = append(l.Failures, f)
	i := slices.IndexFunc(p.Rules, func(r retry.Rule) bool { return meets(&r, &f) })
	rule := &p.Default
	if i >= 0 {
		rule = &p.Rules[i]
		if l.byRule == nil {
			l.byRule = map[int]int32{}
		}
		l.byRule[i]++
	}
	l.Over = l.Over || rule.Fail || int32(len(l.Failures)) > p.Attempts || i >= 0 && rule.Attempts >= 0 && l.byRule[i] > rule.Attempts
	l.left = nil
	if l.Over {
		return l
	}
	if rule.OtherRegion && k.Region == "" {
		l.left, l.leftAt = &at, now
	}
	if f.Category == retry.OOM && rule.MemoryMilli > 0 {
		was := max(l.memory, p.MemoryBytes)
		next := was * rule.MemoryMilli / 1000
		if rule.MemoryLimit > 0 {
			next = min(next, rule.MemoryLimit)
		}
		l.memory = max(was, next)
	}
	return l
}

// Placed notes that a region begins an attempt, at a time of the log. It returns what is wrong with that, or "".
func (j *Checker) Placed(k Key, at At, p *retry.Policy, memory, now int64) string {
	if j.stale(k, at) {
		return ""
	}
	l := j.at(k, at)
	left := l.left
	l.left = nil
	least, most := max(l.memory, p.MemoryBytes), max(l.memory, p.MemoryBytes)
	if l.Unsure {
		for _, r := range p.Rules {
			most = max(most, r.MemoryLimit)
		}
	}
	switch {
	case l.Over:
		return fmt.Sprintf("is tried again after %d failures, the last one %s; retries are %d", len(l.Failures), l.Failures[len(l.Failures)-1], p.Attempts)
	case memory < least || memory > most:
		return fmt.Sprintf("gets %d MiB of memory after %d failures, not %d to %d", memory>>20, len(l.Failures), least>>20, most>>20)
	case left != nil && left.Region == at.Region && left.Generation == at.Generation && now < l.leftAt+int64(leaveFor):
		return fmt.Sprintf("is tried again in %s, and a rule asks for another region", at.Region)
	}
	return ""
}

// leaveFor is how long a region lets the global tier move an instance, before it begins the attempt itself.
const leaveFor = 30 * time.Second

// meets reports whether a failure meets each condition of a rule.
func meets(r *retry.Rule, f *Failure) bool {
	in := func(all []int32, n int32) bool { return len(all) == 0 || n != 0 && slices.Contains(all, n) }
	category := f.Category
	if category == "" {
		category = retry.App
	}
	return in(r.ExitCodes, f.ExitCode) && in(r.Signals, f.Signal) && (len(r.Categories) == 0 || slices.Contains(r.Categories, category))
}

// String says what is known of an instance.
func (l *Life) String() string {
	return fmt.Sprintf("%d failures in run %d of version %d, over %v", len(l.Failures), l.Run, l.Version, l.Over)
}
