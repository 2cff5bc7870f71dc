package state

import (
	"errors"
	"iter"
	"slices"
	"testing"
)

func TestSnapshotThatIsDamaged(t *testing.T) {
	l := running(t, nil)
	var all []Record
	for r := range l.Snapshot().Records() {
		if r.Alloc != nil { // valid until the next one
			c := *r.Alloc
			r.Alloc = &c
		}
		if r.Instance != nil {
			c := *r.Instance
			r.Instance = &c
		}
		all = append(all, r)
	}
	seq := func(records []Record) iter.Seq2[Record, error] {
		return func(yield func(Record, error) bool) {
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
	if s, err := Restore(seq(all)); err != nil || s.Snapshot().Hash() != l.Snapshot().Hash() {
		t.Fatalf("a whole snapshot: %v", err)
	}
	for name, records := range map[string][]Record{
		"empty":     nil,
		"truncated": all[:len(all)-1],
		"headless":  all[1:],
		"hole":      slices.Delete(slices.Clone(all), 2, 3),
		"unknown":   slices.Insert(slices.Clone(all), 2, Record{}),
	} {
		if _, err := Restore(seq(records)); !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("disk")
	if _, err := Restore(func(yield func(Record, error) bool) { yield(Record{}, broken) }); !errors.Is(err, broken) {
		t.Errorf("a read error: %v", err)
	}
}

func TestSnapshotsAndForksAreApart(t *testing.T) {
	l := running(t, nil)
	view := l.Snapshot()
	was := view.Hash()
	fork := view.Fork()
	l.ok(testPlace("a2", 1, "n2", 1))
	fork.Apply(l.idx+1, testStop("a1"))
	if view.Hash() != was {
		t.Error("the view has changed")
	}
	if _, ok := fork.Alloc("a2"); ok {
		t.Error("the fork sees what the state did")
	}
	if a, _ := l.Alloc("a1"); a.Desired != Run {
		t.Error("the state sees what the fork did")
	}
}
