package apportion

import (
	"fmt"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		name  string
		parts []Part
		total int
		want  []int
	}{
		{"in proportion", []Part{{Share: 8, High: 99}, {Share: 4, High: 99}, {Share: 2, High: 99}}, 10, []int{6, 3, 1}},
		{"equal remainders", []Part{{Share: 1, High: 99}, {Share: 1, High: 99}, {Share: 1, High: 99}}, 4, []int{2, 1, 1}},
		{"no more than high", []Part{{Share: 1, High: 99}, {Share: 1, High: 1}, {Share: 1, High: 99}}, 9, []int{4, 1, 4}},
		{"no less than low", []Part{{Share: 1, Low: 5, High: 99}, {Share: 1, High: 99}, {Share: 1, High: 99}}, 8, []int{5, 2, 1}},
		{"low beyond what the others can give", []Part{{Share: 1, Low: 5, High: 9}, {Share: 9, Low: 1, High: 9}}, 6, []int{5, 1}},
		{"both bounds", []Part{{Share: 10, High: 3}, {Share: 1, Low: 4, High: 9}, {Share: 1, High: 9}}, 10, []int{3, 4, 3}},
		{"more than all can have", []Part{{Share: 1, High: 2}, {Share: 3, High: 1}}, 9, []int{2, 1}},
		{"nothing", []Part{{Share: 1, High: 2}}, 0, []int{0}},
		{"no parts", nil, 3, []int{}},
	} {
		Divide(c.parts, c.total)
		got := make([]int, len(c.parts))
		for i, p := range c.parts {
			got[i] = p.Gets
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// level returns the quota for each unit of share with which the bounded quotas add up to
// the total. It finds the quota by another method than Divide.
func level(parts []Part, total int) *big.Rat {
	at := func(l *big.Rat) *big.Rat {
		sum := new(big.Rat)
		for _, p := range parts {
			sum.Add(sum, quota(p, l))
		}
		return sum
	}
	var breaks []*big.Rat
	for _, p := range parts {
		breaks = append(breaks, big.NewRat(int64(p.Low), p.Share), big.NewRat(int64(p.High), p.Share))
	}
	slices.SortFunc(breaks, (*big.Rat).Cmp)
	want := big.NewRat(int64(total), 1)
	for i, b := range breaks {
		if at(b).Cmp(want) < 0 {
			continue
		}
		if i == 0 || at(b).Cmp(want) == 0 {
			return b
		}
		// Between two neighbouring breaks the sum is linear.
		from, to := at(breaks[i-1]), at(b)
		part := new(big.Rat).Quo(new(big.Rat).Sub(want, from), new(big.Rat).Sub(to, from))
		return part.Add(breaks[i-1], part.Mul(part, new(big.Rat).Sub(b, breaks[i-1])))
	}
	return breaks[len(breaks)-1]
}

func quota(p Part, level *big.Rat) *big.Rat {
	q := new(big.Rat).Mul(level, big.NewRat(p.Share, 1))
	if low := big.NewRat(int64(p.Low), 1); q.Cmp(low) < 0 {
		return low
	}
	if high := big.NewRat(int64(p.High), 1); q.Cmp(high) > 0 {
		return high
	}
	return q
}

// TestDivideIsWithinOneOfTheQuota compares the parts with exact fractions, for random
// bounds.
func TestDivideIsWithinOneOfTheQuota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := make([]Part, rapid.IntRange(1, 8).Draw(t, "parts"))
		least, most := 0, 0
		for i := range parts {
			low := rapid.SampledFrom([]int{0, 0, 1, 7}).Draw(t, "low")
			parts[i] = Part{Share: rapid.SampledFrom([]int64{1, 2, 3, 10, 1 << 30}).Draw(t, "share"), Low: low, High: low + rapid.IntRange(0, 30).Draw(t, "room")}
			least, most = least+low, most+parts[i].High
		}
		total := rapid.IntRange(least, most).Draw(t, "total")
		given := slices.Clone(parts)
		Divide(parts, total)
		at, sum := level(given, total), 0
		type rest struct {
			of *big.Rat
			up bool
		}
		var rests []rest
		for i, p := range parts {
			sum += p.Gets
			if p.Gets < given[i].Low || p.Gets > given[i].High {
				t.Fatalf("part %d gets %d, not within %d..%d", i, p.Gets, given[i].Low, given[i].High)
			}
			off := new(big.Rat).Sub(big.NewRat(int64(p.Gets), 1), quota(given[i], at))
			if new(big.Rat).Abs(off).Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("part %d gets %d, its quota is %s", i, p.Gets, quota(given[i], at).FloatString(3))
			}
			switch {
			case off.Sign() > 0:
				rests = append(rests, rest{new(big.Rat).Sub(big.NewRat(1, 1), off), true})
			case off.Sign() < 0:
				rests = append(rests, rest{new(big.Rat).Neg(off), false})
			}
		}
		if sum != total {
			t.Fatalf("the parts add up to %d, not %d: %s", sum, total, fmt.Sprint(parts))
		}
		for _, a := range rests {
			for _, b := range rests {
				if a.up && !b.up && a.of.Cmp(b.of) < 0 {
					t.Fatalf("a remainder of %s is rounded up, %s is not: %v", a.of.FloatString(3), b.of.FloatString(3), parts)
				}
			}
		}
	})
}
