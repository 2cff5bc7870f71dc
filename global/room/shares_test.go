package room

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestShares: whatever is added, at most the limit is left, only the oldest records of an owner are
// removed, and no owner loses records while it has clearly less than its share.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Shares
		type record struct{ number, bytes int64 }
		all := map[string][]record{}
		total := int64(0)
		for number := range int64(rapid.IntRange(1, 200).Draw(t, "records")) {
			owner := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "owner")
			r := record{number + 1, rapid.Int64Range(1, 1000).Draw(t, "bytes")}
			s.Add(owner, r.number, r.bytes)
			all[owner] = append(all[owner], r)
			total += r.bytes
		}
		if s.Bytes != total {
			t.Fatalf("%d bytes, want %d", s.Bytes, total)
		}
		most := rapid.Int64Range(0, 100_000).Draw(t, "most")
		var removed []int64
		for {
			some := s.Excess(most, 7)
			if len(some) == 0 {
				break
			}
			if len(some) > 7 {
				t.Fatalf("%d records at once", len(some))
			}
			removed = append(removed, some...)
		}
		left, sum := map[string]int64{}, int64(0)
		for owner, records := range all {
			keeps := false
			for _, r := range records {
				gone := slices.Contains(removed, r.number)
				if gone && keeps {
					t.Fatalf("record %d of %s is removed, and an older one is not", r.number, owner)
				}
				keeps = !gone
				if keeps {
					left[owner] += r.bytes
				}
			}
			sum += left[owner]
		}
		if sum != s.Bytes || sum > most {
			t.Fatalf("%d bytes are left, counted %d, limit %d", sum, s.Bytes, most)
		}
		for owner, records := range all {
			lost := len(records) > 0 && slices.Contains(removed, records[0].number)
			for other := range all {
				if lost && left[other] > left[owner]+2000 {
					t.Fatalf("%s lost records and has %d bytes, %s has %d", owner, left[owner], other, left[other])
				}
			}
		}
	})
}

// TestSharesByAge: records below a number are removed, of all owners.
func TestSharesByAge(t *testing.T) {
	var s Shares
	for i := range int64(6) {
		s.Add(fmt.Sprint("r", i%3), i, 10)
	}
	if !s.Before(4) || s.Records != 2 || s.Bytes != 20 || s.Last() != 5 || s.Before(4) {
		t.Errorf("%+v", s)
	}
	s.Before(9)
	if s.Records != 0 || s.Last() != 0 || len(s.owners) != 0 {
		t.Errorf("%+v", s)
	}
}
