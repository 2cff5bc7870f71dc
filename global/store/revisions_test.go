package store

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRevisionsGrow: after any raises, the revision that callers see grows with every write, is
// above the requested one, and leads back to the write. A revision that a raise passed over leads
// to no write.
func TestRevisionsGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r revisions
		now, last := int64(1), int64(1)
		seen := map[int64]int64{1: 1}
		for range rapid.IntRange(1, 40).Draw(t, "writes") {
			above := int64(0)
			if rapid.Bool().Draw(t, "raise") {
				above = last + rapid.Int64Range(-20, 20).Draw(t, "above")
				next, err := parseRevisions(r.above(above, now).String(), now+1)
				if err != nil {
					t.Fatal(err)
				}
				r = next
			}
			now++
			got := r.seen(now)
			if got <= last || got <= above {
				t.Fatalf("write %d is seen as %d after %d, above %d", now, got, last, above)
			}
			for passed := last + 1; passed < got; passed++ {
				if own, exact := r.own(passed); exact || own != now-1 {
					t.Fatalf("revision %d between %d and %d leads to %d, exactly: %t", passed, last, got, own, exact)
				}
			}
			seen[got], last = now, got
			for s, want := range seen {
				if own, exact := r.own(s); own != want || !exact || r.seen(own) != s {
					t.Fatalf("revision %d leads to %d, exactly: %t, want %d", s, own, exact, want)
				}
			}
		}
	})
}

func TestUnknownRevisionsAreRefused(t *testing.T) {
	for _, text := range []string{"7", "7 x", "a 7", "7 -1", "\x01\x02"} {
		if r, err := parseRevisions(text, 9); err == nil {
			t.Errorf("%q was read as %v", text, r)
		}
	}
}
