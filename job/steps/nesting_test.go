package steps

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestContained compares random nestings of workflows with a walk over all paths.
func TestContained(t *testing.T) {
	const most, deepest = 6, 4
	seen := map[string]int{}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.IntN(9)
		inside := map[string][]string{}
		for i := range n {
			for j := range n {
				if (j > i || r.IntN(40) == 0) && r.IntN(3) == 0 {
					inside[fmt.Sprint(i)] = append(inside[fmt.Sprint(i)], fmt.Sprint(j))
				}
			}
		}
		got, err := Contained("0", func(name string) ([]string, error) { return inside[name], nil }, most, deepest)
		cycle, deep, all := false, false, map[string]bool{}
		var walk func(path []string)
		walk = func(path []string) {
			name := path[len(path)-1]
			if slices.Contains(path[:len(path)-1], name) {
				cycle = true
				return
			}
			deep = deep || len(path) > deepest
			all[name] = true
			for _, sub := range inside[name] {
				walk(append(slices.Clone(path), sub))
			}
		}
		walk([]string{"0"})
		delete(all, "0")
		want := "ok"
		switch {
		case err == nil && !cycle && !deep && len(all) <= most && len(got) == len(all) && slices.IsSorted(got):
		case err != nil && cycle && strings.Contains(err.Error(), "contain each other: "):
			want = "cycle"
		case err != nil && deep && strings.Contains(err.Error(), "more than 4 workflows contain each other"):
			want = "deep"
		case err != nil && len(all) > most && strings.Contains(err.Error(), "more than 6 other"):
			want = "many"
		default:
			t.Fatalf("seed %d: %v contains %v, %v; cycle %v, deep %v, all %v", seed, inside, got, err, cycle, deep, all)
		}
		seen[want]++
	}
	for _, kind := range []string{"ok", "cycle", "deep", "many"} {
		if seen[kind] < 10 {
			t.Errorf("%d times %s: the test sees too little", seen[kind], kind)
		}
	}
}

// TestTheWayAroundIsNamed: errors name the workflows in their order.
func TestTheWayAroundIsNamed(t *testing.T) {
	inside := map[string][]string{"etl": {"train"}, "train": {"fit"}, "fit": {"train"}, "a": {"b"}, "b": {"c"}, "c": {"d"}, "d": nil}
	of := func(name string) ([]string, error) { return inside[name], nil }
	for root, want := range map[string]string{"etl": "workflows contain each other: train → fit → train", "a": "more than 3 workflows contain each other: a → b → c → d"} {
		if _, err := Contained(root, of, 9, 3); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", root, err, want)
		}
	}
}
