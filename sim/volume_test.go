package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// TestVolumeOfOneNode: of all nodes of all regions one may give a job its volume.
// No other is tried, and while that one is away the instance stays its own:
// nobody takes it back for rooms where it cannot run, and it goes on.
func TestVolumeOfOneNode(t *testing.T) {
	for _, away := range absences {
		t.Run(away.name, func(t *testing.T) {
			dir := t.TempDir()
			opts := sim.Options{Regions: []string{"alpha", "beta"}, Agents: 4, VolumesAllow: map[string][]string{
				"alpha-agent-2": {dir}, "beta-agent-1": {dir + "s"},
			}}
			inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
				told := follow(t, f.Global(1), &nusav1.WatchEventsRequest{})
				f.Submit(behaving("web", "service", "", "volumes: {data: {source: "+dir+"}}", ""))
				awaitRunsOnce(f, 10*time.Second, "web", 1)
				before := ids(t, f, "web")
				if n := oneNode(t, f, "web"); n != 2 {
					t.Fatalf("it runs on agent %d", n)
				}
				back := away.leave(f, 2)
				time.Sleep(away.for_)
				if away.lost {
					if err := awayAs(t.Context(), f, "web", "alpha-agent-2 has been silent for"); err != nil {
						t.Error(err)
					}
				}
				back()
				awaitRunsOnce(f, 10*time.Second, "web", 1)
				time.Sleep(2 * time.Minute)
				if after := ids(t, f, "web"); !slices.Equal(before, after) {
					t.Errorf("%v runs, it was %v", after, before)
				}
				if err := neverTried(t.Context(), f, before); err != nil {
					t.Error(err)
				}
				for _, ev := range told() {
					if strings.HasPrefix(ev.GetType(), "slot.revok") {
						t.Errorf("told was %v", ev)
					}
				}
			})
		})
	}
}

// neverTried: besides some allocations none was ever made.
func neverTried(ctx context.Context, f *sim.Federation, but []string) error {
	for _, region := range []string{"alpha", "beta"} {
		list, err := f.Allocations(ctx, region)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(list, func(a *nusav1.Allocation) bool { return !slices.Contains(but, a.GetId()) }); i >= 0 {
			return fmt.Errorf("%s tried it %d times: %v", region, len(list), list[i])
		}
	}
	return nil
}
