package plan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestSpansAreASet compares spans with a map, for random instances in random order.
func TestSpansAreASet(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var spans []Span
		set := map[string]bool{}
		for range 300 {
			group, index := string(rune('a'+rnd.IntN(3))), int32(rnd.IntN(60))
			before := fmt.Sprint(spans)
			next := Add(spans, group, index)
			if fmt.Sprint(spans) != before {
				t.Fatalf("seed %d: Add has changed its argument", seed)
			}
			spans, set[fmt.Sprint(group, index)] = next, true
		}
		size := 0
		for i, s := range spans {
			size += int(s.To - s.From)
			if s.From >= s.To || i > 0 && spans[i-1].Group == s.Group && spans[i-1].To >= s.From || i > 0 && spans[i-1].Group > s.Group {
				t.Fatalf("seed %d: spans %v", seed, spans)
			}
		}
		if size != len(set) {
			t.Fatalf("seed %d: %d instances, want %d", seed, size, len(set))
		}
		for index := range int32(61) {
			for _, group := range []string{"a", "b", "c", "d"} {
				if Has(spans, group, index) != set[fmt.Sprint(group, index)] {
					t.Fatalf("seed %d: %s[%d] in %v", seed, group, index, spans)
				}
			}
		}
	}
}

// TestForget: what is forgotten is the least that meets the limits, oldest first.
func TestForget(t *testing.T) {
	now := time.Unix(1e9, 0)
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var all []Stored
		total := 0
		for i := range rnd.IntN(20) {
			all = append(all, Stored{now.Add(-time.Duration(20-i) * time.Hour), rnd.IntN(10)})
			total += all[i].Bytes
		}
		l := Limits{Age: time.Duration(rnd.IntN(25)) * time.Hour, Most: rnd.IntN(20), Bytes: rnd.IntN(80)}
		n := Forget(all, len(all), total, l, now)
		meets := func(rest []Stored) bool {
			sum := 0
			for _, s := range rest {
				sum += s.Bytes
			}
			return len(rest) <= l.Most && sum <= l.Bytes && (len(rest) == 0 || now.Sub(rest[0].At) < l.Age)
		}
		if !meets(all[n:]) || n > 0 && meets(all[n-1:]) {
			t.Fatalf("seed %d: %d of %d are forgotten, limits %v: %v", seed, n, len(all), l, all)
		}
	}
}

func TestTail(t *testing.T) {
	for _, c := range []struct {
		text         string
		lines, bytes int
		want         string
	}{
		{"", 3, 100, ""},
		{"a\nb\nc\n", 2, 100, "b\nc"},
		{"a\nb", 5, 100, "a\nb"},
		{"a\r\nb\r\n", 5, 100, "a\nb"},
		{"one\ntwo\nthree", 3, 7, "o\nthree"},
		{"ä", 1, 1, ""},
		{"a\x1b[31mred", 1, 100, "a\uFFFD[31mred"},
		{"a\xffb\n\n", 1, 100, "a\uFFFDb"},
		{strings.Repeat("x", 1000), 1, 5, "xxxxx"},
	} {
		if got := Tail(c.text, c.lines, c.bytes); got != c.want {
			t.Errorf("Tail(%q, %d, %d) = %q, want %q", c.text, c.lines, c.bytes, got, c.want)
		}
	}
}

func FuzzTail(f *testing.F) {
	f.Add("a\nb\x00\xff\n", 3, 10)
	f.Fuzz(func(t *testing.T, text string, lines, bytes int) {
		lines, bytes = 1+max(0, lines)%50, 1+max(0, bytes)%5000
		got := Tail(text, lines, bytes)
		if !utf8.ValidString(got) || len(got) > bytes || strings.Count(got, "\n") >= lines {
			t.Errorf("Tail(%q, %d, %d) = %q", text, lines, bytes, got)
		}
	})
}
