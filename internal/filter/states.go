package filter

import (
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// partial is the state of a job when some of its instances run and others wait. Messages call such a job pending.
const partial = "partial"

// The words for the states of each kind of object, in the order in which help shows them.
var (
	JobStates        = []string{"pending", "starting", "running", partial, "complete", "failed", "stopping", "stopped"}
	AllocationStates = []string{"pending", "starting", "running", "stopping", "complete", "failed", "stopped", "lost"}
	NodeStates       = []string{"ready", "lost", "left", "draining", "cordoned"}
	RegionStates     = []string{"defined", "connected", "disconnected", "lost", "island", "silent", "draining", "cordoned"}
	OverrideStates   = []string{"stopped", "scaled", "holding"}
	ScheduleStates   = []string{"paused", "running", "waiting", "failing", "idle"}
	SemaphoreStates  = []string{"free", "full", "waiting"}
	TokenStates      = []string{"valid", "used", "ended", "revoked"}
)

// which returns the words whose facts are true.
func which(facts ...fact) (out []string) {
	for _, f := range facts {
		if f.is {
			out = append(out, f.word)
		}
	}
	return out
}

type fact struct {
	word string
	is   bool
}

// Job returns the states of a job: that of its message, and partial.
func Job(s *nusav1.JobStatus) []string {
	out := []string{word(s.GetState())}
	if IsPartial(s) {
		out = append(out, partial)
	}
	return out
}

// IsPartial reports whether some instances of a job run and others wait.
func IsPartial(s *nusav1.JobStatus) bool {
	if s.GetState() != nusav1.JobState_JOB_STATE_PENDING {
		return false
	}
	for _, g := range s.GetGroups() {
		if g.GetCounts().GetRunning() > 0 {
			return true
		}
	}
	return false
}

// HasEnded reports whether a request for allocations in these states needs those that have ended.
func HasEnded(states []string) bool {
	return len(states) > 0 && Has(states, "complete", "failed", "stopped", "lost")
}

// Allocation returns the states of an allocation. One that has the order to stop, and has not ended, is also stopping.
func Allocation(state nusav1.AllocState, desired nusav1.AllocDesired) []string {
	return which(fact{word(state), true},
		fact{"stopping", desired == nusav1.AllocDesired_ALLOC_DESIRED_STOP && state < nusav1.AllocState_ALLOC_STATE_COMPLETE})
}

// Node returns the states of a node.
func Node(n *nusav1.Node) []string {
	return which(fact{word(n.GetState()), true}, fact{"draining", n.GetDraining()}, fact{"cordoned", n.GetCordoned()})
}

// Region returns the states of a region.
func Region(r *nusav1.Region) []string {
	return which(fact{word(r.GetState()), true}, fact{"silent", r.GetSilent() != nil}, fact{"draining", r.GetDraining()}, fact{"cordoned", r.GetCordoned()})
}

// Override returns the states of an override.
func Override(o *nusav1.Override) []string {
	return which(fact{"stopped", o.GetStopped() && len(o.GetGroups()) == 0}, fact{"scaled", len(o.GetGroups()) > 0}, fact{"holding", o.GetHeld() > 0})
}

// Schedule returns the states of a schedule: whether it is paused, how many of its runs have not ended, how many times
// wait, and how many of the latest runs in a row have failed.
func Schedule(paused bool, active, waiting, failures int) []string {
	out := which(fact{"paused", paused}, fact{"running", active > 0}, fact{"waiting", waiting > 0}, fact{"failing", failures > 0})
	if len(out) == 0 {
		return []string{"idle"}
	}
	return out
}

// Semaphore returns the states of a semaphore.
func Semaphore(p *nusav1.Semaphore) []string {
	free := p.GetHeld() < int64(p.GetUnits())
	return which(fact{"free", free}, fact{"full", !free}, fact{"waiting", p.GetWaiters() > 0})
}

// Token returns the state of a join token.
func Token(t *nusav1.JoinToken, now time.Time) string {
	switch {
	case t.GetRevoked():
		return "revoked"
	case !t.GetExpiresAt().AsTime().After(now):
		return "ended"
	case t.GetUses() < 1:
		return "used"
	}
	return "valid"
}
