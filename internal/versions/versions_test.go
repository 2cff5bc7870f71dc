package versions_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/versions"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// list makes versions 1..n. tagged have the tag "vN", and the first old ones were replaced too long ago.
func list(n, old int, tagged ...int64) (all []versions.Version) {
	for i := range n {
		v := versions.Version{Number: int64(i + 1), Replaced: now.Add(-time.Hour)}
		if i < old {
			v.Replaced = now.Add(-versions.Age)
		}
		if slices.Contains(tagged, v.Number) {
			v.Tag = fmt.Sprintf("v%d.0", v.Number)
		}
		all = append(all, v)
	}
	return all
}

func TestKeep(t *testing.T) {
	for name, c := range map[string]struct {
		all         []versions.Version
		first, last int64
		also        []int64
	}{
		"none":                        {},
		"few":                         {all: list(3, 0), first: 1, last: 3},
		"one more than 30":            {all: list(31, 0), first: 2, last: 31},
		"too old":                     {all: list(5, 2), first: 3, last: 5},
		"a tag outlives the count":    {all: list(40, 0, 2, 40), first: 11, last: 40, also: []int64{2}},
		"a tag outlives the age":      {all: list(5, 5, 3), also: []int64{3}},
		"at most 16 more with a tag":  {all: list(50, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18), first: 21, last: 50, also: []int64{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}},
		"a clock that was set back":   {all: []versions.Version{{Number: 1, Replaced: now.Add(time.Hour)}}, first: 1, last: 1},
		"numbers may have gaps":       {all: []versions.Version{{Number: 2, Replaced: now}, {Number: 9, Replaced: now}}, also: []int64{2, 9}},
		"a tag takes no other's room": {all: list(31, 0, 31), first: 2, last: 31},
	} {
		want := c.also
		for n := c.first; n > 0 && n <= c.last; n++ {
			want = append(want, n)
		}
		var got []int64
		for _, i := range versions.Keep(c.all, now) {
			got = append(got, c.all[i].Number)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// sized makes versions 1.. of the given sizes. tagged have a tag.
func sized(bytes []int, tagged ...int64) []versions.Version {
	all := list(len(bytes), 0, tagged...)
	for i, n := range bytes {
		all[i].Bytes = n
	}
	return all
}

func TestWithin(t *testing.T) {
	for name, c := range map[string]struct {
		all   []versions.Version
		limit int
		kept  []int
	}{
		"none":                        {nil, 10, nil},
		"all fit":                     {sized([]int{4, 3, 3}), 10, []int{0, 1, 2}},
		"the oldest goes":             {sized([]int{4, 4, 3}), 10, []int{1, 2}},
		"two must go":                 {sized([]int{1, 9, 9}), 10, []int{2}},
		"a tag stays longer":          {sized([]int{4, 4, 3}, 1), 10, []int{0, 2}},
		"tags go when they must":      {sized([]int{4, 4, 4, 8}, 1, 2), 13, []int{1, 3}},
		"the latest stays, too large": {sized([]int{4, 4, 40}, 1), 10, []int{2}},
	} {
		if got := versions.Within(c.all, c.limit); !slices.Equal(got, c.kept) {
			t.Errorf("%s: %v, want %v", name, got, c.kept)
		}
	}
}

func TestFind(t *testing.T) {
	all := list(12, 0, 3)
	for name, want := range map[string]int{"1": 0, "12": 11, "v3.0": 2, "13": -1, "": -1, "v4.0": -1, "01": 0} {
		if got := versions.Find(all, name); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
}

func TestCheckTag(t *testing.T) {
	for text, ok := range map[string]bool{
		"v1.2": true, "2026-11-28": true, "a": true, strings.Repeat("a", 63): true,
		"": false, "12": false, "-1": false, "V1": false, "a b": false, ".a": false, "a/b": false, strings.Repeat("a", 64): false,
	} {
		if err := versions.CheckTag(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
