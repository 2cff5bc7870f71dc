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

// TestVolumeOfOneNode: only one node of all regions allows the volume of a job. No other node is
// tried. While that node is disconnected, the instance stays there and continues. The instance is
// not revoked although nodes that cannot run it have room.
func TestVolumeOfOneNode(t *testing.T) {
	for _, absence := range absences {
		t.Run(absence.name, func(t *testing.T) {
			dir := t.TempDir()
			opts := sim.Options{Regions: []string{"alpha", "beta"}, Agents: 4, VolumesAllow: map[string][]string{
				"alpha-agent-2": {dir}, "beta-agent-1": {dir + "s"},
			}}
			inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
				events := follow(t, f.Global(1), &nusav1.WatchEventsRequest{})
				f.Submit(behaving("web", "service", "", "volumes: {data: {source: "+dir+"}}", ""))
				awaitRunsOnce(f, 10*time.Second, "web", 1)
				before := ids(t, f, "web")
				if n := oneNode(t, f, "web"); n != 2 {
					t.Fatalf("it runs on agent %d", n)
				}
				back := absence.leave(f, 2)
				time.Sleep(absence.for_)
				if absence.lost {
					if err := shownAs(t.Context(), f, "web", "alpha-agent-2 has been silent for"); err != nil {
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
				for _, ev := range events() {
					if strings.HasPrefix(ev.GetType(), "slot.revok") {
						t.Errorf("events was %v", ev)
					}
				}
			})
		})
	}
}

// neverTried checks that no allocation exists besides the given ones.
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
