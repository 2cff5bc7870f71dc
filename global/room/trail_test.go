package room

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestTrail: whatever is added, the oldest records are removed until at most the limit and one
// segment are left, and no more than needed.
func TestTrail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type record struct {
			key   string
			bytes int64
		}
		var trail, earlier Trail
		var all []record
		n := rapid.IntRange(0, 200).Draw(t, "records")
		split := rapid.IntRange(0, n).Draw(t, "loaded")
		for i := range n {
			r := record{fmt.Sprintf("%06d", i), rapid.Int64Range(1, 1<<19).Draw(t, "bytes")}
			all = append(all, r)
			if i < split {
				earlier.Add(r.key, r.bytes)
			} else {
				trail.Add(r.key, r.bytes)
			}
		}
		trail.Before(earlier)
		most := rapid.Int64Range(0, 50<<20).Draw(t, "most")
		sum := func() (bytes int64) {
			for _, r := range all {
				bytes += r.bytes
			}
			return bytes
		}
		if trail.Bytes != sum() {
			t.Fatalf("%d bytes, want %d", trail.Bytes, sum())
		}
		for {
			before, bytes := trail.Excess(most)
			if before == "" {
				break
			}
			was := sum()
			for len(all) > 0 && all[0].key < before {
				all = all[1:]
			}
			trail.Removed(before)
			if was-sum() != bytes || trail.Bytes != sum() || trail.Records != int64(len(all)) || was <= most {
				t.Fatalf("before %s: %d of %d bytes went, said %d of %d", before, was-sum(), was, bytes, trail.Bytes)
			}
		}
		if sum() > max(most, 2*segmentBytes) {
			t.Fatalf("%d bytes are left of at most %d", sum(), most)
		}
	})
}
