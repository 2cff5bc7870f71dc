package taskpage

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPagesOfRegionsAreOneList: whatever part of its records a region returns in a page, reading page
// after page gives every record of all regions once, in order.
func TestPagesOfRegionsAreOneList(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		regions := make([][]Key, 1+rnd.IntN(4))
		var want []Key
		for i := range 200 {
			k := Key{Placed: int64(rnd.IntN(50))}
			k.ID[0], k.ID[1] = byte(rnd.IntN(256)), byte(i)
			r := rnd.IntN(len(regions))
			regions[r] = append(regions[r], k)
			want = append(want, k)
		}
		newest := func(a, b Key) int { return b.Compare(a) }
		slices.SortFunc(want, newest)
		for _, r := range regions {
			slices.SortFunc(r, newest)
		}
		limit := 1 + rnd.IntN(40)
		var got []Key
		var below *Key
		for range 1000 {
			pages := make([]Page[Key], 0, len(regions))
			for _, r := range regions {
				pages = append(pages, part(rnd, r, below, limit))
			}
			p := Merge(pages, func(k Key) Key { return k }, limit)
			if len(p.Items) > limit {
				t.Fatalf("seed %d: %d records, limit %d", seed, len(p.Items), limit)
			}
			got = append(got, p.Items...)
			below = p.Next
			if below == nil {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %d records, want %d", seed, len(got), len(want))
		}
	}
}

// part returns the records below a key. It reads a random number of them, and at least one.
func part(rnd *rand.Rand, all []Key, below *Key, limit int) Page[Key] {
	var p Page[Key]
	steps := 1 + rnd.IntN(60)
	for _, k := range all {
		if below != nil && k.Compare(*below) >= 0 {
			continue
		}
		if steps == 0 || len(p.Items) == limit {
			return p
		}
		steps--
		p.Items, p.Next = append(p.Items, k), &k
	}
	p.Next = nil
	return p
}

func TestTokens(t *testing.T) {
	id, ok := ParseID("0123abcd-4567-89ab-cdef-00112233ff55")
	if !ok || FormatID(id[:]) != "0123abcd-4567-89ab-cdef-00112233ff55" {
		t.Fatalf("%x, %v", id, ok)
	}
	k := Key{Placed: 77, ID: id}
	if got, err := ParseToken(k.Token()); err != nil || got != k {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "x", "AAAA", k.Token() + "A", k.Token()[1:]} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("%q is a token", bad)
		}
	}
	for _, bad := range []string{"", "a1", "0123abcd-4567-89ab-cdef-00112233ff5", "0123abcdx4567-89ab-cdef-00112233ff55", "0123abcg-4567-89ab-cdef-00112233ff55"} {
		if _, ok := ParseID(bad); ok {
			t.Errorf("%q is a UUID", bad)
		}
	}
}
