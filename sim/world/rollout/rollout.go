package rollout

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/progress"
)

// Record is what is stored about the rollout of a version. A stored Record never changes.
type Record struct {
	Version  int64
	Canaries []Canary
	// Decided: a server made the latest change, and not an operator.
	Promoted, Done, Paused, Decided bool
	// Failed says why the version has failed.
	Failed string
	best   map[string]int // the greatest number of healthy instances, by group
}

// Canary holds the indices of a group's canaries: N instances from the index From.
type Canary struct {
	Group   string
	From, N int
}

// Waits reports whether the canaries of a rollout are not promoted.
func (r *Record) Waits() bool { return r != nil && len(r.Canaries) > 0 && !r.Promoted && !r.Done }

// Held reports whether instances that the version has not reached must wait.
func (r *Record) Held() bool { return r.Waits() || r.Failed != "" || r.Paused }

// Of returns the canaries of a group, or nil.
func (r *Record) Of(group string) *Canary {
	if r == nil || r.Done {
		return nil
	}
	i := slices.IndexFunc(r.Canaries, func(c Canary) bool { return c.Group == group })
	if i < 0 {
		return nil
	}
	return &r.Canaries[i]
}

// Indices returns how many instances a group has, and the first index that waits for no turn. count is what
// the spec asks for.
func (r *Record) Indices(group string, count int) (instances, first int) {
	c := r.Of(group)
	if c == nil {
		return count, 0
	}
	return progress.Canaries{From: c.From, N: c.N, Promoted: r.Promoted, Failed: r.Failed != ""}.Indices(count)
}

// Group is a group that takes part in a rollout, as the regions report it.
type Group struct {
	progress.Group
	MinHealthy  time.Duration
	AutoPromote bool
}

// Soft is what the active server knows of a rollout besides the record.
type Soft struct {
	version  int64
	canaries bool
	// steadyAt is since when every canary has been healthy; 0: one is not.
	steadyAt time.Duration
	// held: no deadline counted at the latest evaluation.
	held   bool
	groups map[string]*groupSoft
}

type groupSoft struct {
	best     int
	at, busy time.Duration
}

// Evaluate decides about the rollout of a version. rec is the stored record, or nil. held says why no
// deadline counts now, or "". It returns the record to store, or nil.
func (s *Soft) Evaluate(version int64, rec *Record, groups []Group, held string, now time.Duration) (*Record, progress.Decision) {
	if s.version != version || s.canaries != rec.Waits() {
		*s = Soft{version: version, canaries: rec.Waits(), groups: map[string]*groupSoft{}}
	}
	facts := progress.Rollout{Version: version, Begun: rec != nil, Canaries: rec.Waits(), Held: held}
	if rec != nil {
		facts.Paused, facts.Failed = rec.Paused, rec.Failed != ""
	}
	stopped := facts.Paused || facts.Failed || held != ""
	for i := range groups {
		facts.Groups = append(facts.Groups, s.timed(groups[i].Group, rec, stopped || s.held, now))
	}
	s.held = stopped
	if facts.Canaries {
		waits := s.steady(&facts, groups, now)
		s.held = stopped || waits
	}
	return s.next(rec, &facts, now)
}

// timed adds since when a group has made no progress. restart: the deadlines begin now.
func (s *Soft) timed(f progress.Group, rec *Record, restart bool, now time.Duration) progress.Group {
	soft := s.groups[f.Name]
	if soft == nil {
		soft = &groupSoft{at: now, busy: now}
		if rec != nil {
			soft.best = rec.best[f.Name]
		}
		s.groups[f.Name] = soft
	}
	if restart {
		soft.at, soft.busy = now, now
	}
	if f.Starting == 0 {
		soft.busy = now
	}
	f.Best, f.Idle, f.Busy = soft.best, now-soft.at, now-max(soft.at, soft.busy)
	return f
}

// steady adds since when every canary has been healthy, and reports whether all are.
func (s *Soft) steady(to *progress.Rollout, groups []Group, now time.Duration) (all bool) {
	all, to.AutoPromote = true, true
	for i := range groups {
		g := &groups[i]
		all = all && g.Healthy >= g.Desired
		to.AutoPromote, to.MinHealthy = to.AutoPromote && g.AutoPromote, max(to.MinHealthy, g.MinHealthy)
	}
	switch {
	case !all || to.Paused || to.Failed || to.Held != "":
		s.steadyAt = 0
	case s.steadyAt == 0:
		s.steadyAt = now
	}
	if s.steadyAt > 0 {
		to.Steady = now - s.steadyAt
	}
	return all
}

// next returns the record that follows from the facts, or nil.
func (s *Soft) next(rec *Record, facts *progress.Rollout, now time.Duration) (*Record, progress.Decision) {
	d := facts.Decide()
	next := &Record{Version: facts.Version}
	if rec != nil {
		*next = *rec
	}
	next.Decided, next.best = true, map[string]int{}
	for i := range facts.Groups {
		g, soft := &facts.Groups[i], s.groups[facts.Groups[i].Name]
		if g.Healthy > soft.best {
			soft.best, soft.at, soft.busy = g.Healthy, now, now
		}
		next.best[g.Name] = soft.best
	}
	switch d.Kind {
	case progress.Keep, progress.Grew:
		return nil, d
	case progress.Promote:
		next.Promoted, next.best = true, nil
	case progress.Done:
		next = &Record{Version: facts.Version, Done: true, Decided: true}
	case progress.Fail:
		next.Failed = d.Why
	}
	return next, d
}
