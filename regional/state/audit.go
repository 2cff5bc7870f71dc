package state

import (
	"iter"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// AuditAge and AuditBytes bound the audit trail in the state. The oldest entries beyond are removed.
const AuditAge, AuditBytes = 30 * 24 * time.Hour, 16 << 20

// AuditLevel is the feature level from which on commands may have entries of the audit trail.
const AuditLevel = 3

// AuditEntry is an entry of the region's audit trail: see audit.Entry. Apply sets Seq and UnixNano.
type AuditEntry struct {
	Seq       int64
	UnixNano  int64
	Who       string
	From      string
	Method    string
	Verb      string
	Kind      string
	Namespace string
	Name      string
	Request   string
	Outcome   string
	Reason    string
	Before    []byte
	After     []byte
}

// AuditOf returns the entry for a command. The texts of e must be bounded.
func AuditOf(e audit.Entry) *AuditEntry {
	return &AuditEntry{
		Who: e.Who, From: e.From, Method: e.Method, Verb: e.Verb, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name,
		Request: e.Request, Outcome: e.Outcome, Reason: e.Reason, Before: e.Before, After: e.After,
	}
}

// Entry returns the entry with the name of its region.
func (e *AuditEntry) Entry(region string) audit.Entry {
	return audit.Entry{
		Seq: e.Seq, Time: time.Unix(0, e.UnixNano).UTC(), Who: e.Who, From: e.From, Method: e.Method, Verb: e.Verb, Kind: e.Kind,
		Namespace: e.Namespace, Name: e.Name, Region: region, Request: e.Request, Outcome: e.Outcome, Reason: e.Reason,
		Before: e.Before, After: e.After,
	}
}

// size returns about how many bytes the entry takes.
func (e *AuditEntry) size() int64 {
	const numbers = 256 // bytes of the numbers and of the headers of the texts
	return int64(numbers + len(e.Who) + len(e.From) + len(e.Method) + len(e.Verb) + len(e.Kind) + len(e.Namespace) + len(e.Name) +
		len(e.Request) + len(e.Outcome) + len(e.Reason) + len(e.Before) + len(e.After))
}

// TrailRecord is the tree before the first entry in a snapshot.
type TrailRecord struct {
	Size   int64
	Hashes []byte
}

// Trail is the audit trail of a state.
type Trail struct {
	// entries are the entries by the lower bits of their numbers.
	entries persist.Array[AuditEntry]
	// base is the tree before the oldest entry, tree is the tree of all entries.
	base, tree audit.Tree
	bytes      int64
}

// record adds the entry of a command to the trail.
func record(t *txn, from *AuditEntry) {
	e, a := *from, &t.trail
	e.Seq, e.UnixNano = a.tree.Size+1, t.now
	addEntry(t.State, &e)
	for a.base.Size < a.tree.Size {
		oldest, _ := a.entries.Get(uint32(a.base.Size + 1))
		if a.bytes <= AuditBytes && oldest.UnixNano >= t.now-int64(AuditAge) {
			break
		}
		whole := oldest.Entry(t.cluster.Region)
		a.base = a.base.Append(whole.Hash())
		a.bytes -= oldest.size()
		a.entries.Delete(t.own, uint32(oldest.Seq))
	}
}

// addEntry adds an entry with its number.
func addEntry(s *State, e *AuditEntry) {
	whole := e.Entry(s.cluster.Region)
	s.trail.tree = s.trail.tree.Append(whole.Hash())
	s.trail.bytes += e.size()
	s.trail.entries.Set(s.own, uint32(e.Seq), e)
}

// Tree returns the tree of all entries, also of those that were removed.
func (a *Trail) Tree() audit.Tree { return a.tree }

// Base returns the tree before the oldest entry that the state has.
func (a *Trail) Base() audit.Tree { return a.base }

// Entries yields the entries in order.
func (a *Trail) Entries() iter.Seq[*AuditEntry] {
	return func(yield func(*AuditEntry) bool) {
		for seq := a.base.Size + 1; seq <= a.tree.Size; seq++ {
			if e, ok := a.entries.Get(uint32(seq)); ok && !yield(e) {
				return
			}
		}
	}
}

// Latest yields the entries, the latest first.
func (a *Trail) Latest() iter.Seq[*AuditEntry] {
	return func(yield func(*AuditEntry) bool) {
		for seq := a.tree.Size; seq > a.base.Size; seq-- {
			if e, ok := a.entries.Get(uint32(seq)); ok && !yield(e) {
				return
			}
		}
	}
}

// records puts the records of the trail.
func (a *Trail) records(put func(Record) bool) bool {
	if a.tree.Size == 0 {
		return true
	}
	rec := &TrailRecord{Size: a.base.Size}
	for _, h := range a.base.Hashes {
		rec.Hashes = append(rec.Hashes, h[:]...)
	}
	if !put(Record{Trail: rec}) {
		return false
	}
	for e := range a.Entries() {
		if !put(Record{Audit: e}) {
			return false
		}
	}
	return true
}

// restoreTrail begins the trail of a snapshot.
func restoreTrail(s *State, rec *TrailRecord) error {
	base := audit.Tree{Size: rec.Size}
	for rest := rec.Hashes; len(rest) > 0; {
		var h audit.Hash
		rest = rest[copy(h[:], rest):]
		base.Hashes = append(base.Hashes, h)
	}
	s.trail.base, s.trail.tree = base, base
	return base.Check()
}
