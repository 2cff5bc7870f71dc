package global

import (
	"slices"
	"testing"

	"github.com/nusa-scheduler/nusa/internal/serve"
)

// TestKnownRegions: the names outlive the process. Only the removal of a region by this server
// forgets its name; a store that lacks the region from the beginning may be an old copy.
func TestKnownRegions(t *testing.T) {
	dir, err := serve.OpenDataDir(t.TempDir(), "global", "")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	open := func() *knownRegions {
		k, err := openKnownRegions(dir)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := open()
	for _, step := range []struct {
		what  string
		begin bool
		note  []string
		want  []string
	}{
		{"two regions", true, []string{"alpha", "beta"}, []string{"alpha", "beta"}},
		{"another one", false, []string{"alpha", "beta", "gamma"}, []string{"alpha", "beta", "gamma"}},
		{"one is removed", false, []string{"alpha", "gamma"}, []string{"alpha", "gamma"}},
		{"an old copy of the store", true, []string{"alpha"}, []string{"alpha", "gamma"}},
		{"the same copy", false, []string{"alpha"}, []string{"alpha", "gamma"}},
	} {
		if step.begin {
			k = open()
			k.begin()
		}
		if err := k.note(step.note); err != nil {
			t.Fatal(err)
		}
		if got := open().begin(); !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
	if err := k.add([]string{"alpha", "delta"}); err != nil {
		t.Fatal(err)
	}
	if got := open().begin(); !slices.Equal(got, []string{"alpha", "delta", "gamma"}) {
		t.Errorf("after the note of a standby: %q", got)
	}
}
