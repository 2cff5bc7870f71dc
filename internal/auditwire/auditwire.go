package auditwire

import (
	"errors"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// FromEntry returns the message of an entry, without its hash.
func FromEntry(e audit.Entry) *nusav1.AuditEntry {
	return &nusav1.AuditEntry{
		Seq: e.Seq, Time: timestamppb.New(e.Time), Who: e.Who, From: e.From, Method: e.Method, Verb: e.Verb, Kind: e.Kind,
		Namespace: e.Namespace, Name: e.Name, Region: e.Region, Request: e.Request, Outcome: e.Outcome, Reason: e.Reason,
		Before: e.Before, After: e.After,
	}
}

// Entry returns the entry of a message.
func Entry(m *nusav1.AuditEntry) audit.Entry {
	return audit.Entry{
		Seq: m.GetSeq(), Time: m.GetTime().AsTime(), Who: m.GetWho(), From: m.GetFrom(), Method: m.GetMethod(), Verb: m.GetVerb(), Kind: m.GetKind(),
		Namespace: m.GetNamespace(), Name: m.GetName(), Region: m.GetRegion(), Request: m.GetRequest(), Outcome: m.GetOutcome(), Reason: m.GetReason(),
		Before: m.GetBefore(), After: m.GetAfter(),
	}
}

// Exported returns an entry with the hash that the server computed.
func Exported(m *nusav1.AuditEntry) audit.Exported {
	out := audit.Exported{Entry: Entry(m)}
	copy(out.Hash[:], m.GetHash())
	return out
}

// FromTree returns the message of a tree.
func FromTree(t audit.Tree) *nusav1.AuditTree {
	out := &nusav1.AuditTree{Size: t.Size, Hashes: make([][]byte, len(t.Hashes))}
	for i := range t.Hashes {
		out.Hashes[i] = t.Hashes[i][:]
	}
	return out
}

// ErrTree says that a message is no tree.
var ErrTree = errors.New("the tree of the audit trail is damaged")

// Tree returns the tree of a message. A nil message is the empty tree.
func Tree(m *nusav1.AuditTree) (audit.Tree, error) {
	out := audit.Tree{Size: m.GetSize(), Hashes: make([]audit.Hash, len(m.GetHashes()))}
	for i, h := range m.GetHashes() {
		if copy(out.Hashes[i][:], h) != len(out.Hashes[i]) || len(h) != len(out.Hashes[i]) {
			return audit.Tree{}, ErrTree
		}
	}
	if len(out.Hashes) == 0 {
		out.Hashes = nil
	}
	return out, out.Check()
}

// common holds the values that entries of a record often share.
type common struct{ who, from, method, verb, kind, outcome string }

// Pack returns the stored record of entries that follow a tree, and the tree with these entries. It
// numbers the entries. What entries have in common is stored once.
func Pack(before audit.Tree, entries []audit.Entry) (*nusav1.AuditRecord, audit.Tree) {
	rec := &nusav1.AuditRecord{
		Before: FromTree(before), Entries: make([]*nusav1.AuditEntry, len(entries)), Call: make([]uint32, len(entries)),
	}
	hashes := make([]audit.Hash, len(entries))
	all, times := make([]nusav1.AuditEntry, len(entries)), make([]timestamppb.Timestamp, len(entries))
	calls := map[common]uint32{}
	for i := range entries {
		e := &entries[i]
		e.Seq = before.Size + int64(i) + 1
		hashes[i] = e.Hash()
		c := common{e.Who, e.From, e.Method, e.Verb, e.Kind, e.Outcome}
		at, known := calls[c]
		if !known {
			at = uint32(len(calls))
			calls[c] = at
			rec.Calls = append(rec.Calls, &nusav1.AuditEntry{Who: c.who, From: c.from, Method: c.method, Verb: c.verb, Kind: c.kind, Outcome: c.outcome})
		}
		rec.Call[i] = at
		times[i].Seconds, times[i].Nanos = e.Time.Unix(), int32(e.Time.Nanosecond())
		m := &all[i]
		m.Time, m.Namespace, m.Name, m.Region, m.Request, m.Reason, m.Before, m.After = &times[i], e.Namespace, e.Name, e.Region, e.Request, e.Reason, e.Before, e.After
		rec.Entries[i] = m
	}
	return rec, before.Append(hashes...)
}

// Unpack returns the entries of a stored record with their numbers and hashes, and the tree before
// them. A record of an earlier version has no entries.
func Unpack(rec *nusav1.AuditRecord) ([]*nusav1.AuditEntry, audit.Tree, error) {
	before, err := Tree(rec.GetBefore())
	if err != nil {
		return nil, before, err
	}
	out := make([]*nusav1.AuditEntry, len(rec.GetEntries()))
	for i, stored := range rec.GetEntries() {
		e := proto.CloneOf(stored)
		if i < len(rec.GetCall()) && int(rec.GetCall()[i]) < len(rec.GetCalls()) {
			proto.Merge(e, rec.GetCalls()[rec.GetCall()[i]])
		}
		e.Seq = before.Size + int64(i) + 1
		one := Entry(e)
		hash := one.Hash()
		e.Hash = hash[:]
		out[i] = e
	}
	return out, before, nil
}
