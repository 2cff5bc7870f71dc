package semaphore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var t0 = time.Unix(0, 0)

// all returns the waiters, the oldest first.
func all(q *Queue) (out []Waiter) {
	for name := range q.lines {
		out = append(out, slices.Collect(q.Of(name))...)
	}
	slices.SortFunc(out, compare)
	return slices.CompactFunc(out, func(a, b Waiter) bool { return a.Key == b.Key })
}

// oracle says by brute force who gets units: it tries the waiters in order, and takes what the older ones need.
func oracle(order []Waiter, units, held map[string]int) (out []Key) {
	taken := map[string]int{}
	for _, w := range order {
		if slices.ContainsFunc(w.Needs, func(n Need) bool { return n.Units > units[n.Name] }) {
			continue
		}
		if !slices.ContainsFunc(w.Needs, func(n Need) bool { return held[n.Name]+taken[n.Name]+n.Units > units[n.Name] }) {
			out = append(out, w.Key)
		}
		for _, n := range w.Needs {
			taken[n.Name] += n.Units
		}
	}
	return out
}

// TestRandomLife: steps come, wait, hold and end; units change. Each grant is that of the oracle, nobody holds
// above capacity unless it shrank, and once no further steps come, all that can ever start do.
func TestRandomLife(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		life(t, rand.New(rand.NewPCG(seed, 1)), seed)
	}
}

func life(t *testing.T, r *rand.Rand, seed uint64) {
	t.Helper()
	q, names := &Queue{}, []string{"a", "b", "c"}
	units, held, holders := map[string]int{"a": 1, "b": 2, "c": 4}, map[string]int{}, map[Key]Waiter{}
	next := 0
	grant := func() {
		want := oracle(all(q), units, held)
		var got []Key
		for _, w := range q.Grant(func(name string) (int, int) { return units[name], held[name] }) {
			got = append(got, w.Key)
			holders[w.Key] = w
			for _, n := range w.Needs {
				if held[n.Name] += n.Units; held[n.Name] > units[n.Name] {
					t.Fatalf("seed %d: %d units of %s are held of %d", seed, held[n.Name], n.Name, units[n.Name])
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: granted %v, want %v", seed, got, want)
		}
	}
	release := func() {
		for k, w := range holders {
			delete(holders, k)
			for _, n := range w.Needs {
				held[n.Name] -= n.Units
			}
			return
		}
	}
	for range 200 {
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			w := Waiter{Key: Key{Run: fmt.Sprint(r.IntN(3)), Step: next}, Since: t0.Add(time.Duration(r.IntN(50)) * time.Second)}
			next++
			for _, name := range names {
				if r.IntN(2) == 0 {
					w.Needs = append(w.Needs, Need{name, 1 + r.IntN(3)})
				}
			}
			if len(w.Needs) > 0 {
				q.Add(w)
				q.Add(w) // it waits already
			}
		case 4, 5, 6:
			release()
		case 7:
			if now := all(q); len(now) > 0 {
				q.Remove(now[r.IntN(len(now))].Key)
			}
		case 8:
			units[names[r.IntN(3)]] = r.IntN(5) // 0: it was removed
		}
		grant()
	}
	for range 2 * next {
		release()
		grant()
	}
	for _, w := range all(q) {
		if !slices.ContainsFunc(w.Needs, func(n Need) bool { return n.Units > units[n.Name] }) {
			t.Fatalf("seed %d: %v waits for ever", seed, w)
		}
	}
	counts := map[string]int{}
	for _, w := range all(q) {
		for _, n := range w.Needs {
			counts[n.Name]++
		}
	}
	for _, name := range names {
		if q.Waiting(name) != counts[name] {
			t.Fatalf("seed %d: %d wait for %s, counted are %d", seed, counts[name], name, q.Waiting(name))
		}
	}
}

// TestTheOldestIsNotOvertaken: a step that needs much gets it, although steps that need little keep coming.
func TestTheOldestIsNotOvertaken(t *testing.T) {
	t.Parallel()
	q, held := &Queue{}, 1
	q.Add(Waiter{Key: Key{Run: "large"}, Since: t0, Needs: []Need{{"a", 2}}})
	for i := range 5 {
		q.Add(Waiter{Key: Key{Run: "small", Step: i}, Since: t0.Add(time.Second), Needs: []Need{{"a", 1}}})
		if out := q.Grant(func(string) (int, int) { return 2, held }); len(out) > 0 {
			t.Fatalf("%v overtook", out)
		}
	}
	held = 0
	if out := q.Grant(func(string) (int, int) { return 2, held }); len(out) != 1 || out[0].Run != "large" {
		t.Errorf("granted %v", out)
	}
}

// BenchmarkGrant is one grant of a unit for which many steps wait. In the case "behind", the step that gets the unit
// stands behind all those that wait for another semaphore, and all of them need a unit of a third one that has many.
func BenchmarkGrant(b *testing.B) {
	for _, waiters := range []int{1_000, 10_000, 100_000} {
		for _, c := range []struct {
			name   string
			others []Need
		}{{"first", nil}, {"behind", []Need{{"closed", 1}, {"wide", 1}}}} {
			b.Run(fmt.Sprintf("%s/%d", c.name, waiters), func(b *testing.B) {
				q, needs := &Queue{}, []Need{{"a", 1}}
				i := 0
				add := func(needs []Need) {
					q.Add(Waiter{Key: Key{Run: "r", Step: i}, Since: t0, Needs: needs})
					i++
				}
				for range waiters {
					if c.others != nil {
						add(c.others)
					} else {
						add(needs)
					}
				}
				room := func(name string) (int, int) {
					return map[string]int{"a": 1, "closed": 1, "wide": 1 << 20}[name], map[string]int{"closed": 1}[name]
				}
				add(needs)
				q.Grant(room)
				add(needs)
				b.ReportAllocs()
				for b.Loop() {
					if out := q.Grant(room); len(out) != 1 {
						b.Fatal(len(out))
					}
					add(needs)
				}
			})
		}
	}
}
