package serve

import "testing"

func TestCollectorRunsMoreOftenAsTheHeapGrows(t *testing.T) {
	const budget = 300 << 20
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, 400}, {10 << 20, 400}, {60 << 20, 400}, {100 << 20, 200}, {149 << 20, 100}, {200 << 20, 60}, {4 << 30, 60},
	} {
		if got := pace(c.live, budget); got != c.want {
			t.Errorf("%d MiB live: %d percent, want %d", c.live>>20, got, c.want)
		}
	}
}
