package recovery

import (
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Merge returns a conflict that has the greater values of two conflicts, and the region of the
// first one. If the second one has a greater value than the first, the store must be recovered
// again.
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

// Longer returns the longer of two durations, or nil if both are 0.
func Longer(a, b *durationpb.Duration) *durationpb.Duration {
	if b.AsDuration() > a.AsDuration() {
		return b
	}
	return a
}

// NoteLog stores in the record of a new term how many entries the store's log has beyond its
// revisions. If that is less than the record says, the store has another log, because a snapshot
// was restored. NoteLog then stores a conflict.
func NoteLog(rec *nusav1.LeadershipRecord, s store.Surplus, revision int64) {
	switch known := rec.GetLog(); {
	case !s.Known:
	case known != nil && s.Most < known.GetSurplus():
		rec.Conflict = Merge(rec.GetConflict(), &nusav1.RevisionConflict{OtherLog: true, Stored: revision})
	case known == nil || s.Least > known.GetSurplus():
		rec.Log = &nusav1.StoreLog{Surplus: s.Least}
	}
}

// LogAlarm returns the alarm while a store does not tell the length of its log. err is why. stored:
// an earlier term has stored the length, so the store may be a restored snapshot, and nothing is
// ordered.
func LogAlarm(err error, stored bool) string {
	held := "no lease is granted and no region is declared lost"
	if stored {
		held = "nothing is placed, ordered or granted"
	}
	return fmt.Sprintf("this server cannot ask the store for the length of its log (%v), so the store may be an old copy, and %s: "+
		"make a member of the store answer `etcdctl endpoint status` from this host", err, held)
}

// Text says how it was noticed that the store was restored, and what to do. It returns "" without a
// conflict.
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
