package recovery

import (
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Merge returns a conflict with what more shows. The first one says who showed it. One that
// shows more than was recovered has to be recovered again.
func Merge(c, more *nusav1.RevisionConflict) *nusav1.RevisionConflict {
	if c == nil {
		return more
	}
	known, term := max(c.GetKnown(), more.GetKnown()), max(c.GetKnownTerm(), more.GetKnownTerm())
	otherLog := c.GetOtherLog() || more.GetOtherLog()
	return &nusav1.RevisionConflict{
		Region: c.GetRegion(), Stored: c.GetStored(), Known: known, KnownTerm: term, OtherLog: otherLog,
		Recovered: c.GetRecovered() && known == c.GetKnown() && term == c.GetKnownTerm() && otherLog == c.GetOtherLog(),
		LeaseMax:  Longer(c.GetLeaseMax(), more.GetLeaseMax()), StopTime: Longer(c.GetStopTime(), more.GetStopTime()),
	}
}

// Longer returns the longer one of two durations; nil for two of length 0.
func Longer(a, b *durationpb.Duration) *durationpb.Duration {
	if b.AsDuration() > a.AsDuration() {
		return b
	}
	return a
}

// NoteLog notes in the record of a new term how long the log of the store is, or that the
// store has another log than the record knows: then a snapshot was restored.
func NoteLog(rec *nusav1.LeadershipRecord, s store.Surplus, revision int64) {
	switch known := rec.GetLog(); {
	case !s.Known:
	case known != nil && s.Most < known.GetSurplus():
		rec.Conflict = Merge(rec.GetConflict(), &nusav1.RevisionConflict{OtherLog: true, Stored: revision})
	case known == nil || s.Least > known.GetSurplus():
		rec.Log = &nusav1.StoreLog{Surplus: s.Least}
	}
}

// Text says what shows that the store was restored, and what to do; empty without a conflict.
func Text(c *nusav1.RevisionConflict) string {
	shown := ""
	switch {
	case c == nil:
		return ""
	case c.GetKnown() == 0 && c.GetKnownTerm() == 0 && c.GetOtherLog():
		shown = fmt.Sprintf("the log of the store is not the one that its records know (revision %d)", c.GetStored())
	case c.GetRegion() == "":
		shown = fmt.Sprintf("a global server knows more than the store (revision %d of %d)", c.GetKnown(), c.GetStored())
	default:
		shown = fmt.Sprintf("region %s knows more than the store (revision %d of %d)", c.GetRegion(), c.GetKnown(), c.GetStored())
	}
	return shown + ": the store was restored from an old copy, and nothing is placed, ordered or granted before `nusa server recover`"
}
