package state

import (
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
)

func keysOf(v *View, prefix string) (out []string) {
	for d := range v.Documents(prefix) {
		out = append(out, d.Key+"="+string(d.Value))
	}
	return out
}

// TestDocuments: a change is applied completely or not at all, and a snapshot has all documents.
func TestDocuments(t *testing.T) {
	l := newLog(t)
	put := func(checks []DocumentCheck, docs ...string) Command {
		c := &ChangeDocuments{Checks: checks}
		for _, d := range docs {
			key, value, _ := strings.Cut(d, "=")
			c.Puts = append(c.Puts, Document{Key: key, Value: []byte(value)})
		}
		return Command{ChangeDocuments: c}
	}
	l.ok(put([]DocumentCheck{{Key: "a/1"}}, "a/1=x", "a/2=y", "b=z"))
	first, _ := l.Document("a/1")
	old := l.Snapshot()
	l.fails(put([]DocumentCheck{{Key: "a/1"}}, "c=1"), ErrStaleRevision)
	l.fails(put([]DocumentCheck{{"a/1", first.Version + 1}}, "c=1"), ErrStaleRevision)
	l.ok(put([]DocumentCheck{{"a/1", first.Version}}, "a/1=xx"))
	l.fails(put([]DocumentCheck{{"a/1", first.Version}}, "a/1=lost"), ErrStaleRevision)
	if again, _ := l.Document("a/1"); again.Version <= first.Version {
		t.Errorf("version %d follows %d", again.Version, first.Version)
	}
	if r := l.ok(Command{ChangeDocuments: &ChangeDocuments{Deletes: []string{"a/2", "none"}}}); !r.Changed {
		t.Error("nothing is removed")
	}
	if got := keysOf(&l.View, "a/"); !slices.Equal(got, []string{"a/1=xx"}) {
		t.Errorf("a/ has %v", got)
	}
	if got := keysOf(old, ""); !slices.Equal(got, []string{"a/1=x", "a/2=y", "b=z"}) {
		t.Errorf("an old view has %v", got)
	}
	if l.Snapshot().SameDocuments(old) {
		t.Error("the documents count as unchanged")
	}
	l.fails(put(nil, "=x"), ErrInvalid)
	l.fails(put(nil, "x="+strings.Repeat("v", maxDocument+1)), ErrInvalid)
	restored, err := Restore(func() iter.Seq2[Record, error] {
		return func(yield func(Record, error) bool) {
			for r := range l.Snapshot().Records() {
				if !yield(r, nil) {
					return
				}
			}
		}
	}())
	if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() || restored.documentBytes != l.documentBytes {
		t.Errorf("%v; %d bytes, want %d", err, restored.documentBytes, l.documentBytes)
	}
}

// TestDocumentsAreBounded: no command exceeds the bound of all bytes, and one that frees more
// than it takes is allowed.
func TestDocumentsAreBounded(t *testing.T) {
	l := newLog(t)
	value := make([]byte, maxDocument)
	big := func(key string) Command {
		return Command{ChangeDocuments: &ChangeDocuments{Puts: []Document{{Key: key, Value: value}}}}
	}
	n := 0
	for l.documentBytes+maxDocument+len("k000") <= maxDocuments {
		l.ok(big("k" + string(rune('a'+n/26/26)) + string(rune('a'+n/26%26)) + string(rune('a'+n%26))))
		n++
	}
	if r := l.do(big("more")); !errors.Is(r.Err, ErrFull) {
		t.Fatalf("beyond the bound: %v", r.Err)
	}
	l.ok(Command{ChangeDocuments: &ChangeDocuments{Puts: []Document{{Key: "kaaa", Value: []byte("small")}}}})
	l.ok(big("more"))
}
