package feed

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/overview"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestIdleRegionsAreNotSentAgain: noise of measurements, and ages, are not noticeable. Facts are.
func TestIdleRegionsAreNotSentAgain(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	region := func(change func(*nusav1.OverviewRegion)) *overview.Entry {
		r := &nusav1.OverviewRegion{
			Name: "a", Capacity: &nusav1.Resources{CpuMilli: 1000}, Allocated: &nusav1.Resources{CpuMilli: 500}, LastSeen: timestamppb.New(now), Message: "waits for 12s",
			Utilisation: &nusav1.Utilisation{Cpu: 0.5, NetworkIn: 1 << 20}, Allocations: map[string]int32{"running": 5},
		}
		if change != nil {
			change(r)
		}
		return regionEntry(r)
	}
	for name, c := range map[string]struct {
		change func(*nusav1.OverviewRegion)
		sent   bool
	}{
		"nothing":      {nil, false},
		"cpu noise":    {func(r *nusav1.OverviewRegion) { r.Utilisation.Cpu = 0.54 }, false},
		"cpu":          {func(r *nusav1.OverviewRegion) { r.Utilisation.Cpu = 0.56 }, true},
		"reserved":     {func(r *nusav1.OverviewRegion) { r.Allocated.CpuMilli = 511 }, true},
		"reserved, 1%": {func(r *nusav1.OverviewRegion) { r.Allocated.CpuMilli = 510 }, false},
		"last seen":    {func(r *nusav1.OverviewRegion) { r.LastSeen = timestamppb.New(now.Add(time.Second)) }, false},
		"seen again":   {func(r *nusav1.OverviewRegion) { r.LastSeen = nil }, true},
		"an age":       {func(r *nusav1.OverviewRegion) { r.Message = "waits for 13s" }, false},
		"a message":    {func(r *nusav1.OverviewRegion) { r.Message = "refused" }, true},
		"an instance":  {func(r *nusav1.OverviewRegion) { r.Allocations["running"] = 6 }, true},
	} {
		was := overview.KeepEntry(nil, region(nil), 0)
		if got := overview.KeepEntry(was, region(c.change), time.Second) != was; got != c.sent {
			t.Errorf("%s: sent %t", name, got)
		}
	}
}
