package history

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestNamesAreSorted: whatever is added and removed, After yields each existing name once, in order,
// from any name on.
func TestNamesAreSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Names
		exists := map[string]bool{}
		has := func(name string) bool { return exists[name] }
		name := rapid.Map(rapid.IntRange(0, 40), func(i int) string { return fmt.Sprintf("default/%d", i) })
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			job := name.Draw(t, "job")
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				delete(exists, job)
				n.Removed()
			case 1:
				after := rapid.SampledFrom([]string{"", "default/", job}).Draw(t, "after")
				var want []string
				for name := range exists {
					if name > after {
						want = append(want, name)
					}
				}
				slices.Sort(want)
				if got := slices.Collect(n.After(after, has)); !slices.Equal(got, want) {
					t.Fatalf("after %q: %q, want %q", after, got, want)
				}
			default:
				exists[job] = true
				n.Add(job)
			}
		}
	})
}

// TestOldestAreForgottenFirst: jobs are forgotten by age and by number, but not jobs that have
// returned.
func TestOldestAreForgottenFirst(t *testing.T) {
	var h History
	for i := range 10 {
		h.Put(fmt.Sprint(i), Entry{Revision: int64(i + 1), Ended: int64(100 + i), Size: 10})
	}
	h.Delete("1")
	h.Put("0", Entry{Revision: 20, Ended: 120, Size: 30}) // the job ran again
	if h.Len() != 9 || h.Bytes() != 110 {
		t.Errorf("%d jobs of %d bytes", h.Len(), h.Bytes())
	}
	for _, c := range []struct {
		before       int64
		most, atOnce int
		want         []string
	}{
		{0, 9, 5, nil},
		{0, 7, 5, []string{"2", "3"}},
		{105, 9, 5, []string{"2", "3", "4"}},
		{105, 3, 5, []string{"2", "3", "4", "5", "6"}},
		{1000, 0, 99, []string{"2", "3", "4", "5", "6", "7", "8", "9", "0"}},
	} {
		if got := h.Excess(c.before, c.most, c.atOnce); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
	for i := range 5000 {
		h.Put("0", Entry{Revision: int64(100 + i)})
	}
	if len(h.order) > 3000 {
		t.Errorf("the order has %d jobs for %d", len(h.order), h.Len())
	}
}
