package serve

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

const mib = 1 << 20

func TestCollectorRunsMoreOftenAsTheHeapGrows(t *testing.T) {
	const budget = 300 * mib
	for _, c := range []struct {
		live, rate uint64
		want       int
	}{
		{0, 0, 400},
		{10 * mib, 100 * mib, 400}, {60 * mib, 100 * mib, 400}, {100 * mib, 100 * mib, 200}, {149 * mib, 100 * mib, 100},
		{200 * mib, 100 * mib, 80}, {270 * mib, 100 * mib, 60}, {4096 * mib, 1000 * mib, 60},
		// A program that allocates little needs little memory for that.
		{10 * mib, mib, 40}, {100 * mib, mib, 10}, {60 * mib, 3 * mib, 20}, {100 * mib, 5 * mib, 20}, {100 * mib, 0, 10},
		// A large heap is collected less often.
		{300 * mib, 3 * mib, 10}, {300 * mib, 4 * mib, 20}, {4096 * mib, 4 * mib, 20}, {4096 * mib, 100 * mib, 60},
	} {
		if got := pace(c.live, budget, c.rate); got != c.want {
			t.Errorf("%d MiB live, %d MiB/s: %d percent, want %d", c.live/mib, c.rate/mib, got, c.want)
		}
	}
}

// TestMemoryReturnsOnceAtRest: memory returns once after each busy time, not during it, and
// not again while the program rests.
func TestMemoryReturnsOnceAtRest(t *testing.T) {
	p := pacer{budget: 300 * mib}
	allocated := uint64(0)
	var released []int
	second := 0
	run := func(seconds int, rate uint64) (percent int) {
		for range seconds {
			var release bool
			allocated += rate
			percent, release = p.step(100*mib, allocated, 100*mib)
			if release {
				released = append(released, second)
			}
			second++
		}
		return percent
	}
	if got := run(20, 200*mib); got != 200 {
		t.Errorf("busy: %d percent", got)
	}
	if got := run(2, 0); got != 200 { // a short pause changes nothing
		t.Errorf("after a pause: %d percent", got)
	}
	run(20, 200*mib)
	if got := run(60, mib); got != 10 {
		t.Errorf("at rest: %d percent", got)
	}
	if len(released) != 1 || released[0] < 44 || released[0] > 46 {
		t.Errorf("memory returned in seconds %v", released)
	}
	for range 20 { // a little work now and then is rest
		run(1, 60*mib)
		run(9, mib)
	}
	if len(released) != 1 {
		t.Errorf("memory returned in seconds %v", released)
	}
	run(5, 200*mib)
	run(60, mib)
	if len(released) != 2 {
		t.Errorf("memory returned in seconds %v", released)
	}
}

// TestNoMemoryReturnsInTheFirstSecondOfALoad: a load that begins when the program would come to rest keeps its
// memory, although the mean does not show the load yet.
func TestNoMemoryReturnsInTheFirstSecondOfALoad(t *testing.T) {
	p := pacer{budget: 300 * mib}
	allocated := uint64(0)
	for second, rate := range []uint64{5 * mib, 5 * mib, 5 * mib, 60 * mib, 200 * mib, 200 * mib} {
		allocated += rate
		if _, release := p.step(10*mib, allocated, 60*mib); release {
			t.Errorf("memory returned in second %d", second)
		}
	}
}

// TestUnusedMemoryReturnsAtRest: what a program at rest leaves unused returns from time to time, and a
// little of it does not.
func TestUnusedMemoryReturnsAtRest(t *testing.T) {
	p := pacer{budget: 300 * mib}
	first := 0
	releases := func(held uint64) (n int) {
		for range 60 {
			if _, release := p.step(100*mib, 0, held); release {
				n++
				if p.first() {
					first++
				}
			}
		}
		return n
	}
	if n := releases(112 * mib); n != 1 {
		t.Errorf("memory returned %d times with little to return, want once", n)
	}
	if n := releases(120 * mib); n != 6 {
		t.Errorf("memory returned %d times in a minute, want 6", n)
	}
	if first != 1 {
		t.Errorf("%d of these releases are the first at rest, want 1", first)
	}
}

// TestMemoryReturnsAfterABurst: what a burst at rest leaves returns soon, though the burst is too short to be a load.
// A slow load returns it no sooner than rest does.
func TestMemoryReturnsAfterABurst(t *testing.T) {
	for _, c := range []struct {
		name  string
		after uint64 // allocated in each second after the burst
		want  []int
	}{
		{"burst", mib, []int{8, 18, 28}},
		{"burst and a slow load", 12 * mib, []int{13, 23}},
	} {
		p := pacer{budget: 300 * mib}
		allocated := uint64(0)
		var released, first []int
		for second := range 31 {
			switch {
			case second == 5:
				allocated += 70 * mib
			case second > 5:
				allocated += c.after
			}
			held := uint64(100 * mib)
			if second >= 5 {
				held = 150 * mib
			}
			if _, release := p.step(100*mib, allocated, held); release && second >= 5 {
				released = append(released, second)
				if p.first() {
					first = append(first, second)
				}
			}
		}
		if !slices.Equal(released, c.want) {
			t.Errorf("%s in second 5: memory returned in seconds %v, want %v", c.name, released, c.want)
		}
		if c.after == mib && !slices.Equal(first, []int{8}) {
			t.Errorf("%s: the first releases come in seconds %v, want 8", c.name, first)
		}
	}
}

// TestCollectionsAtRestCostLittle simulates an hour of a program at rest. Its collections may take little more than twice a
// fiftieth of a core, if they mark a MiB in a millisecond.
func TestCollectionsAtRestCostLittle(t *testing.T) {
	const seconds = 3600
	for _, live := range []uint64{2 * mib, 60 * mib, 300 * mib, 1024 * mib, 4096 * mib} {
		for _, rate := range []uint64{mib / 8, 2 * mib, 4 * mib, 8 * mib, 15 * mib} {
			p := pacer{budget: HeapBudget}
			allocated, garbage, marked := uint64(0), uint64(0), uint64(0)
			for range seconds {
				allocated, garbage = allocated+rate, garbage+rate
				percent, release := p.step(live, allocated, live+garbage)
				if release || garbage > live*uint64(percent)/100 {
					garbage, marked = 0, marked+live/mib
				}
			}
			if cores := float64(marked) / 1000 / seconds; cores > 0.045 {
				t.Errorf("%d MiB live, %d KiB/s: collections take %.3f core", live/mib, rate/1024, cores)
			}
		}
	}
}

// TestBurstIsSeenAtOnce: the first collection of a burst shows the burst, and the next second
// keeps it in the mean. A collection of a program at rest changes nothing.
func TestBurstIsSeenAtOnce(t *testing.T) {
	p := pacer{budget: 300 * mib}
	allocated := uint64(0)
	for range 30 {
		allocated += mib
		p.step(100*mib, allocated, 100*mib)
	}
	p.collected(100*mib, allocated, time.Second)
	allocated += 10 * mib
	if got := p.collected(100*mib, allocated, 10*time.Second); got != 10 {
		t.Errorf("at rest: %d percent", got)
	}
	allocated += 20 * mib
	if got := p.collected(100*mib, allocated, 50*time.Millisecond); got != 200 {
		t.Errorf("after the first collection of a burst: %d percent", got)
	}
	allocated += 200 * mib
	if got, _ := p.step(110*mib, allocated, 110*mib); got < 100 {
		t.Errorf("a second later: %d percent", got)
	}
}

func TestNextCollection(t *testing.T) {
	collected := nextCollection()
	runtime.GC()
	select {
	case <-collected:
	case <-time.After(10 * time.Second):
		t.Error("no sign of the collection")
	}
}
