package state

import (
	"cmp"
	"iter"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
	"github.com/nusa-scheduler/nusa/security/audit"
)

const (
	// AuditAge and AuditBytes bound the audit trail in the state. The oldest entries beyond are
	// removed. Entries that the global tier will store, and has not stored yet, stay up to AuditMost
	// bytes of entries.
	AuditAge   = 30 * 24 * time.Hour
	AuditBytes = 16 << 20
	AuditMost  = 32 << 20
)

// AuditLevel is the feature level from which on commands may have entries of the audit trail.
const AuditLevel = 3

// ForwardLevel is the feature level from which on entries of commands may have Stored and Retain.
const ForwardLevel = 4

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
	// Stored and Retain come with a command, and are not part of the entry in the trail. Stored is
	// one more than the number of the trail's entries that the global tier has stored. 0: the
	// proposer has no global tier. Retain is how long entries are kept from now on. Both need
	// Cluster.FeatureLevel 4.
	Stored int64         `codec:"Stored,omitempty"`
	Retain time.Duration `codec:"Retain,omitempty"`
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

// Bytes returns about how many bytes the entry takes.
func (e *AuditEntry) Bytes() int64 { return e.size() }

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
	// The following fields need Cluster.FeatureLevel 4: see Trail.
	Forwards bool          `codec:"Forwards,omitempty"`
	Stored   int64         `codec:"Stored,omitempty"`
	Lost     int64         `codec:"Lost,omitempty"`
	Retain   time.Duration `codec:"Retain,omitempty"`
}

// Trail is the audit trail of a state.
type Trail struct {
	// entries are the entries by the lower bits of their numbers.
	entries persist.Array[AuditEntry]
	// base is the tree before the oldest entry, tree is the tree of all entries.
	base, tree audit.Tree
	bytes      int64
	// forwards: the global tier stores the entries, too. It has stored the entries up to the number
	// stored. lost is how many entries were removed before that.
	forwards     bool
	stored, lost int64
	// retain is how long entries are kept. 0: AuditAge.
	retain time.Duration
}

// record adds the entry of a command to the trail.
func record(t *txn, from *AuditEntry) {
	e, a := *from, &t.trail
	if e.Stored > 0 {
		a.forwards, a.stored = true, max(a.stored, e.Stored-1)
	}
	if e.Retain > 0 {
		a.retain = e.Retain
	}
	e.Seq, e.UnixNano, e.Stored, e.Retain = a.tree.Size+1, t.now, 0, 0
	addEntry(t.State, &e)
	for a.base.Size < a.tree.Size {
		oldest, _ := a.entries.Get(uint32(a.base.Size + 1))
		if !a.removes(oldest, t.now) {
			break
		}
		if a.forwards && oldest.Seq > a.stored {
			a.lost++
		}
		whole := oldest.Entry(t.cluster.Region)
		a.base = a.base.Append(whole.Hash())
		a.bytes -= oldest.size()
		a.entries.Delete(t.own, uint32(oldest.Seq))
	}
}

// removes reports whether the oldest entry is removed.
func (a *Trail) removes(oldest *AuditEntry, now int64) bool {
	if a.forwards && oldest.Seq > a.stored {
		return a.bytes > AuditMost
	}
	return a.bytes > AuditBytes || oldest.UnixNano < now-int64(cmp.Or(a.retain, AuditAge))
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

// Stored returns how many entries the global tier is known to have stored.
func (a *Trail) Stored() int64 { return a.stored }

// Lost returns how many entries were removed before the global tier had stored them.
func (a *Trail) Lost() int64 { return a.lost }

// Entries yields the entries in order.
func (a *Trail) Entries() iter.Seq[*AuditEntry] { return a.After(0) }

// After yields the entries with numbers above seq, in order.
func (a *Trail) After(seq int64) iter.Seq[*AuditEntry] {
	return func(yield func(*AuditEntry) bool) {
		for seq := max(seq, a.base.Size) + 1; seq <= a.tree.Size; seq++ {
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
	rec := &TrailRecord{Size: a.base.Size, Forwards: a.forwards, Stored: a.stored, Lost: a.lost, Retain: a.retain}
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
	s.trail.forwards, s.trail.stored, s.trail.lost, s.trail.retain = rec.Forwards, rec.Stored, rec.Lost, rec.Retain
	return base.Check()
}
