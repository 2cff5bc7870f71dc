package rollout

import (
	"maps"
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
	// Regions has the regions in which the rollout of a job with an order of regions has ended. Ends up to Unpaused
	// are followed by no pause.
	Regions  map[string]End
	Unpaused time.Time
}

// End is the end of a rollout in a region.
type End struct {
	At time.Time
	// Failed says why the version failed there, or is "".
	Failed string
}

// WithEnds returns the record with more regions in which the rollout has ended.
func (r *Record) WithEnds(failed map[string]string, now time.Time) *Record {
	out := *r
	out.Regions, out.Decided = maps.Clone(r.Regions), true
	for name, why := range failed {
		if out.Regions == nil {
			out.Regions = map[string]End{}
		}
		out.Regions[name] = End{now, why}
	}
	return &out
}

// PauseLeft returns how long no further region gets the version, and after which region.
func (r *Record) PauseLeft(pause time.Duration, now time.Time) (left time.Duration, after string) {
	if r == nil || r.Done || pause == 0 {
		return 0, ""
	}
	ended := map[string]time.Time{}
	for name, end := range r.Regions {
		ended[name] = end.At
	}
	return progress.PauseLeft(pause, ended, r.Unpaused, now)
}

// Stage is how far a rollout is that goes from region to region.
type Stage struct {
	Updating []string
	Waiting  bool
	FailedIn string
	Failing  map[string]string
	// PauseLeft is the time until the next region gets the version.
	PauseLeft time.Duration
	Continue  bool
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
	best int
	at   time.Duration
	busy progress.Clock
}

// Evaluate decides about the rollout of a version. rec is the stored record, or nil. stage is nil for a job without an order of
// regions. held says why no deadline counts now, or "". It returns the record to store, or nil.
func (s *Soft) Evaluate(version int64, rec *Record, groups []Group, stage *Stage, held string, now time.Duration, wall time.Time) (*Record, progress.Decision) {
	if s.version != version || s.canaries != rec.Waits() {
		*s = Soft{version: version, canaries: rec.Waits(), groups: map[string]*groupSoft{}}
	}
	facts := progress.Rollout{Version: version, Begun: rec != nil, Canaries: rec.Waits(), Held: held}
	if rec != nil {
		facts.Paused, facts.Failed = rec.Paused, rec.Failed != ""
	}
	if stage != nil && rec != nil && !facts.Canaries {
		facts.Updating, facts.Waiting, facts.FailedIn, facts.Failing = stage.Updating, stage.Waiting, stage.FailedIn, stage.Failing
		facts.PauseLeft, facts.Continue = stage.PauseLeft, stage.Continue
	}
	stopped := facts.Paused || facts.Failed || held != "" || facts.PauseLeft > 0 && len(facts.Updating) == 0
	for i := range groups {
		facts.Groups = append(facts.Groups, s.timed(groups[i].Group, rec, stopped || s.held, now))
	}
	s.held = stopped
	if facts.Canaries {
		waits := s.steady(&facts, groups, now)
		s.held = stopped || waits
	}
	return s.next(rec, &facts, now, wall)
}

// timed adds since when a group has made no progress. restart: the deadlines begin now.
func (s *Soft) timed(f progress.Group, rec *Record, restart bool, now time.Duration) progress.Group {
	soft := s.groups[f.Name]
	if soft == nil {
		soft = &groupSoft{at: now}
		if rec != nil {
			soft.best = rec.best[f.Name]
		}
		s.groups[f.Name] = soft
	}
	if restart {
		soft.at = now
	}
	soft.busy.Note(f.Healthy, f.Starting > 0, now)
	f.Best, f.Idle, f.Busy = soft.best, now-soft.at, soft.busy.Busy(soft.at, now)
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
func (s *Soft) next(rec *Record, facts *progress.Rollout, now time.Duration, wall time.Time) (*Record, progress.Decision) {
	d := facts.Decide()
	next := &Record{Version: facts.Version}
	if rec != nil {
		*next = *rec
	}
	next.Decided, next.best = true, map[string]int{}
	for i := range facts.Groups {
		g, soft := &facts.Groups[i], s.groups[facts.Groups[i].Name]
		if g.Healthy > soft.best {
			soft.best, soft.at = g.Healthy, now
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
	case progress.FailRegions: // deadlines begin again for the next regions
		next = next.WithEnds(d.Regions, wall)
		next.best, s.held = nil, true
	}
	return next, d
}
