package auditwire

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// TestRecords: a stored record has the entries that went into it, also their numbers and hashes.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a", "b", "jane"})
		var tree audit.Tree
		for range rapid.IntRange(1, 4).Draw(t, "records") {
			var entries []audit.Entry
			for range rapid.IntRange(1, 5).Draw(t, "entries") {
				e := audit.Entry{
					Time: time.Unix(0, rapid.Int64().Draw(t, "time")), Verb: text.Draw(t, "verb"), Kind: text.Draw(t, "kind"),
					Namespace: text.Draw(t, "namespace"), Name: text.Draw(t, "name"), Region: text.Draw(t, "region"),
					Outcome: text.Draw(t, "outcome"), Reason: text.Draw(t, "reason"), After: []byte(text.Draw(t, "after")),
				}
				entries = append(entries, e.By(audit.Call{Who: text.Draw(t, "who"), From: text.Draw(t, "from"), Request: text.Draw(t, "request")}).Bounded())
			}
			rec, next := Pack(tree, entries)
			encoded, err := proto.Marshal(rec)
			if err != nil {
				t.Fatal(err)
			}
			stored := &nusav1.AuditRecord{}
			if err := proto.Unmarshal(encoded, stored); err != nil {
				t.Fatal(err)
			}
			out, before, err := Unpack(stored)
			if err != nil || !before.Equal(tree) || len(out) != len(entries) {
				t.Fatalf("%d entries after %+v, %v", len(out), before, err)
			}
			var hashes []audit.Hash
			for i, m := range out {
				x := Exported(m)
				e := x.Entry
				if m.GetSeq() != tree.Size+int64(i)+1 || e.Hash() != x.Hash || e.Hash() != entries[i].Hash() {
					t.Fatalf("%+v, want %+v", e, entries[i])
				}
				hashes = append(hashes, x.Hash)
			}
			tree = tree.Append(hashes...)
			if !tree.Equal(next) {
				t.Fatalf("%+v, want %+v", next, tree)
			}
		}
	})
}

// TestDamagedTrees: a tree that no server can have stored is an error.
func TestDamagedTrees(t *testing.T) {
	hash := make([]byte, 32)
	for name, m := range map[string]*nusav1.AuditTree{
		"short hash":     {Size: 1, Hashes: [][]byte{hash[:31]}},
		"long hash":      {Size: 1, Hashes: [][]byte{append(hash, 1)}},
		"missing hash":   {Size: 3, Hashes: [][]byte{hash}},
		"negative":       {Size: -1},
		"too many ones":  {Size: 2, Hashes: [][]byte{hash, hash}},
		"hashes of none": {Hashes: [][]byte{hash}},
	} {
		if _, err := Tree(m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if tree, err := Tree(nil); err != nil || tree.Size != 0 {
		t.Errorf("%+v, %v", tree, err)
	}
}
