package region

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// refuse returns the effects of a refused hello, or nil if the hello is accepted.
func (s State) refuse(c Config, now time.Duration, h Hello) []Effect {
	switch {
	case now >= c.ActiveUntil && !plant.Is(plant.DeposedServes):
		return refused(h, false, "this server may not be the active one any more")
	case now < c.ServesFrom:
		return refused(h, false, "the store was recovered: this server waits until every earlier lease is over")
	}
	if out := s.refuseCluster(c, h); out != nil {
		out[0].Permanent = out[0].Permanent && !c.LogUnknown // an old copy may name another cluster
		return out
	}
	if why := s.knowsMore(c, h); why != "" {
		conflict := Effect{Kind: Conflict, Stream: h.Stream, Known: h.KnownRevision, KnownTerm: h.KnownTerm.Number, Message: why}
		return append([]Effect{conflict}, refused(h, false, "%s", why)...)
	}
	if c.Conflict {
		return refused(h, false, "the store was restored from an old copy, and nothing is ordered before an operator runs `nusa server recover`")
	}
	if c.LogUnknown {
		return refused(h, false, "the store has not reported the length of its log, so it may be an old copy: nothing is ordered until it does")
	}
	if s.ClusterID == h.ClusterID {
		if out := s.refuseIncarnation(h); out != nil {
			return out
		}
	}
	if plant.Is(plant.OldLog) {
		return nil
	}
	return s.refuseOldCopy(h)
}

// refused returns the effect of a refused hello. A permanent refusal is one of the whole region.
func refused(h Hello, permanent bool, format string, args ...any) []Effect {
	return []Effect{{Kind: Refuse, Stream: h.Stream, Permanent: permanent, OfRegion: permanent, Message: fmt.Sprintf(format, args...)}}
}

// refuseCluster refuses a cluster that may not have the region's name, or that belongs to another
// federation.
func (s State) refuseCluster(c Config, h Hello) []Effect {
	switch {
	case h.ClusterID == "":
		return refused(h, true, "region %s: no cluster id was given", s.Name)
	case s.ClusterID != "" && s.ClusterID != h.ClusterID && !s.NothingRuns:
		out := refused(h, true, "region %s belongs to cluster %s, not to %s: choose another name, or run `nusa region lose %s` if that cluster is gone",
			s.Name, s.ClusterID, h.ClusterID, s.Name)
		out[0].OtherCluster = true
		return out
	case h.BoundName != "" && h.BoundName != s.Name:
		return refused(h, true, "cluster %s is region %s already: a cluster has one name, remove %s first to give it the name %s",
			h.ClusterID, h.BoundName, h.BoundName, s.Name)
	case h.Federation != "" && h.Federation != c.Federation:
		return refused(h, true, "region %s belongs to federation %s, this is %s: check --global of its servers, "+
			"or run `nusa region rebind --federation %s` in the region to let it join this federation", s.Name, h.Federation, c.Federation, c.Federation)
	}
	return nil
}

// refuseIncarnation refuses a master of the region's cluster whose log is of an earlier
// incarnation, or of another restore, or whose term is over.
func (s State) refuseIncarnation(h Hello) []Effect {
	switch {
	case h.Incarnation < s.Incarnation:
		return refused(h, true, "region %s: its log is of incarnation %d, but incarnation %d was known before: the log is an old copy, "+
			"restore it with `nusa regional restore --incarnation %d`", s.Name, h.Incarnation, s.Incarnation, s.Incarnation+1)
	case h.Incarnation > s.Incarnation:
		return nil
	case s.RestoreID != "" && h.RestoreID != s.RestoreID:
		return refused(h, true, "region %s: another restored log began incarnation %d before: the log is an older copy than that one, "+
			"restore it with `nusa regional restore --incarnation %d`", s.Name, s.Incarnation, s.Incarnation+1)
	case h.Term < s.Term:
		effects := refused(h, false, "region %s: term %d is older than %d: there is a later master, or its log is an old copy, "+
			"which `nusa regional restore` helps against", s.Name, h.Term, s.Term)
		effects[0].OfRegion = true // as long as no later master is connected
		return effects
	}
	return nil
}

// refuseOldCopy refuses a log that lacks what the log of the same incarnation had before.
func (s State) refuseOldCopy(h Hello) []Effect {
	sameLog := s.ClusterID == h.ClusterID && h.Incarnation == s.Incarnation
	switch {
	case sameLog && h.AppliedIndex != 0 && h.AppliedIndex < s.lastIndex(h):
		return refused(h, true, "region %s: its log ends at index %d, but index %d was known before: the log is an old copy, "+
			"restore it with `nusa regional restore`, which begins a new incarnation", s.Name, h.AppliedIndex, s.lastIndex(h))
	case s.knownBy == h.log() && (h.KnownRevision != 0 || h.Federation != "" || s.bound) && h.KnownRevision < s.known:
		// An old copy of the log may have grown since it was restored, so its index is no proof.
		return refused(h, true, "region %s: its log knows revision %d, but it had revision %d before: the log is an old copy, "+
			"restore it with `nusa regional restore`, which begins a new incarnation", s.Name, h.KnownRevision, s.known)
	case s.knownBy == h.log() && h.Acked != 0 && h.Acked < s.acked:
		// The copy may have been made after the revision was reached, so the revision alone does
		// not show it. h.Acked is 0 if the log has no orders of this server's numbering: it is then
		// older than the revision, or was bound to another federation meanwhile.
		return refused(h, true, "region %s: its log has the orders up to %d, but it had those up to %d before: the log is an old copy, "+
			"restore it with `nusa regional restore`, which begins a new incarnation", s.Name, h.Acked, s.acked)
	}
	return nil
}

// lastIndex returns the greatest known index of the region's log in the incarnation of a hello.
func (s State) lastIndex(h Hello) uint64 {
	if s.knownBy == h.log() {
		return max(s.AppliedIndex, s.index)
	}
	return s.AppliedIndex
}

// RecoveryStep is how far a recovery raises the revisions above the known ones. A region that is
// absent during the recovery may know later revisions, and would skip an order with a lower one.
const RecoveryStep = 1 << 32

// knowsMore describes what a region knows that the store does not have; empty if the store has
// everything. The caller is the elected server, so no later term can exist.
func (s State) knowsMore(c Config, h Hello) string {
	written, nonce := c.writtenUpTo(h.KnownTerm.Number), c.nonceOf(h.KnownTerm, h.KnownRevision)
	const advice = "the store was restored from an old copy, run `nusa server recover`"
	switch {
	case plant.Is(plant.OldStore):
		return ""
	case h.KnownRevision > c.Revision:
		return fmt.Sprintf("region %s knows revision %d, the store has %d: %s", s.Name, h.KnownRevision, c.Revision, advice)
	case written != 0 && h.KnownRevision > written:
		// The store has reached that revision again, perhaps in later terms.
		return fmt.Sprintf("region %s knows revision %d of leadership term %d, but that term wrote no revision after %d: %s",
			s.Name, h.KnownRevision, h.KnownTerm.Number, written, advice)
	case h.KnownTerm.Number > c.Term.Number:
		return fmt.Sprintf("region %s knows leadership term %d, the store has %d: %s", s.Name, h.KnownTerm.Number, c.Term.Number, advice)
	case nonce != h.KnownTerm.Nonce:
		return fmt.Sprintf("region %s knows another leadership term %d (%s, here %s): %s",
			s.Name, h.KnownTerm.Number, h.KnownTerm.Nonce, nonce, advice)
	}
	return ""
}
