package region

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// refuse returns the effects of a refused hello, or nil if the hello is accepted.
func (s State) refuse(c Config, now time.Duration, h Hello) []Effect {
	refuse := func(permanent bool, format string, args ...any) []Effect {
		return []Effect{{Kind: Refuse, Stream: h.Stream, Permanent: permanent, OfRegion: permanent, Message: fmt.Sprintf(format, args...)}}
	}
	sameCluster := s.ClusterID == h.ClusterID
	switch {
	case now >= c.ActiveUntil && !plant.Is(plant.DeposedServes):
		return refuse(false, "this server may not be the active one any more")
	case now < c.ServesFrom:
		return refuse(false, "the store was recovered: this server waits until every earlier lease is over")
	case h.ClusterID == "":
		return refuse(true, "region %s: no cluster id was given", s.Name)
	case s.ClusterID != "" && !sameCluster && !s.NothingRuns:
		out := refuse(true, "region %s belongs to cluster %s, not to %s: choose another name, or run `nusa region lose %s` if that cluster is gone",
			s.Name, s.ClusterID, h.ClusterID, s.Name)
		out[0].OtherCluster = true
		return out
	case h.BoundName != "" && h.BoundName != s.Name:
		return refuse(true, "cluster %s is region %s already: a cluster has one name, remove %s first to give it the name %s",
			h.ClusterID, h.BoundName, h.BoundName, s.Name)
	case h.Federation != "" && h.Federation != c.Federation:
		return refuse(true, "region %s belongs to federation %s, this is %s: check --global of its servers, "+
			"or run `nusa region rebind --federation %s` in the region to let it join this federation", s.Name, h.Federation, c.Federation, c.Federation)
	case s.knowsMore(c, h) != "":
		conflict := Effect{Kind: Conflict, Stream: h.Stream, Known: h.KnownRevision, KnownTerm: h.KnownTerm.Number, Message: s.knowsMore(c, h)}
		return append([]Effect{conflict}, refuse(false, "%s", conflict.Message)...)
	case c.Conflict:
		return refuse(false, "the store was restored from an old copy, and nothing is ordered before an operator runs `nusa server recover`")
	case sameCluster && h.Incarnation < s.Incarnation:
		return refuse(true, "region %s: its log is of incarnation %d, but incarnation %d was known before: the log is an old copy, "+
			"restore it with `nusa regional restore --incarnation %d`", s.Name, h.Incarnation, s.Incarnation, s.Incarnation+1)
	case sameCluster && h.Incarnation == s.Incarnation && s.RestoreID != "" && h.RestoreID != s.RestoreID:
		return refuse(true, "region %s: another restored log began incarnation %d before: the log is an older copy than that one, "+
			"restore it with `nusa regional restore --incarnation %d`", s.Name, s.Incarnation, s.Incarnation+1)
	case sameCluster && h.Incarnation == s.Incarnation && h.Term < s.Term:
		effects := refuse(false, "region %s: term %d is older than %d: there is a later master, or its log is an old copy, "+
			"which `nusa regional restore` helps against", s.Name, h.Term, s.Term)
		effects[0].OfRegion = true // as long as no later master is connected
		return effects
	case sameCluster && h.Incarnation == s.Incarnation && h.AppliedIndex != 0 && h.AppliedIndex < s.lastIndex(h) && !plant.Is(plant.OldLog):
		return refuse(true, "region %s: its log ends at index %d, but index %d was known before: the log is an old copy, "+
			"restore it with `nusa regional restore`, which begins a new incarnation", s.Name, h.AppliedIndex, s.lastIndex(h))
	case s.knownBy == h.log() && (h.KnownRevision != 0 || h.Federation != "" || s.bound) && h.KnownRevision < s.known && !plant.Is(plant.OldLog):
		// An old copy of the log may have grown since it was restored, so its index is no proof.
		return refuse(true, "region %s: its log knows revision %d, but it had revision %d before: the log is an old copy, "+
			"restore it with `nusa regional restore`, which begins a new incarnation", s.Name, h.KnownRevision, s.known)
	case s.knownBy == h.log() && h.Acked != 0 && h.Acked < s.acked && !plant.Is(plant.OldLog):
		// The copy may have been made after the revision was reached, so the revision alone does
		// not show it. h.Acked is 0 if the log has no orders of this server's numbering: it is then
		// older than the revision, or was bound to another federation meanwhile.
		return refuse(true, "region %s: its log has the orders up to %d, but it had those up to %d before: the log is an old copy, "+
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
