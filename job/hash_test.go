package job

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestGroupHashCoversTheWork: fields that only schedulers read do not change the hash,
// other fields do, and the group itself is not changed.
func TestGroupHashCoversTheWork(t *testing.T) {
	base := func() *nusav1.Group {
		return &nusav1.Group{
			Count: proto.Int32(3), Pool: "gold", MaxRuntime: durationpb.New(5),
			Tasks: map[string]*nusav1.Task{"b": {Driver: "process"}, "a": {Driver: "process"}},
		}
	}
	want := GroupHash(base())
	for name, c := range map[string]struct {
		change func(*nusav1.Group)
		same   bool
	}{
		"nothing":     {func(*nusav1.Group) {}, true},
		"count":       {func(g *nusav1.Group) { g.Count = proto.Int32(4) }, true},
		"regions":     {func(g *nusav1.Group) { g.Regions = &nusav1.RegionsSpec{} }, true},
		"reschedule":  {func(g *nusav1.Group) { g.Reschedule = &nusav1.Reschedule{Attempts: proto.Int32(1)} }, true},
		"disconnect":  {func(g *nusav1.Group) { g.Disconnect = &nusav1.Disconnect{} }, true},
		"update":      {func(g *nusav1.Group) { g.Update = &nusav1.Update{MaxParallel: 2} }, true},
		"spread":      {func(g *nusav1.Group) { g.Spread = &nusav1.NodeSpread{By: "x"} }, true},
		"affinities":  {func(g *nusav1.Group) { g.Affinities = []*nusav1.Affinity{{Weight: 1}} }, true},
		"pool":        {func(g *nusav1.Group) { g.Pool = "" }, false},
		"max_runtime": {func(g *nusav1.Group) { g.MaxRuntime = nil }, false},
		"task":        {func(g *nusav1.Group) { g.Tasks["a"].Driver = "docker" }, false},
		"constraint":  {func(g *nusav1.Group) { g.Constraints = []string{"true"} }, false},
	} {
		g := base()
		c.change(g)
		before := proto.CloneOf(g)
		if raw, _ := (proto.MarshalOptions{Deterministic: true}).Marshal(g); EncodedGroupHash(raw) != GroupHash(g) {
			t.Errorf("%s: another hash of its encoding", name)
		}
		if got := GroupHash(g); (got == want) != c.same {
			t.Errorf("%s: hash %x, was %x", name, got, want)
		}
		if !proto.Equal(g, before) {
			t.Errorf("%s: the group was changed", name)
		}
	}
}
