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
			Tasks: map[string]*nusav1.Task{"b": {Driver: "process"}, "a": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: 100, MemoryBytes: 1 << 20}}},
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

// TestRestHashIgnoresResources: only another CPU, memory or disk of a task, or what only schedulers read, keeps
// the hash. The group itself is not changed.
func TestRestHashIgnoresResources(t *testing.T) {
	base := func() *nusav1.Group {
		task := func() *nusav1.Task {
			return &nusav1.Task{Driver: "process", Resources: &nusav1.Resources{CpuMilli: 100, MemoryBytes: 1 << 20, DiskBytes: 1}, Env: map[string]string{"A": "1"}}
		}
		return &nusav1.Group{Count: proto.Int32(3), Tasks: map[string]*nusav1.Task{"b": task(), "a": task()}}
	}
	want := RestHash(base())
	for name, c := range map[string]struct {
		change func(*nusav1.Group)
		same   bool
	}{
		"nothing":  {func(*nusav1.Group) {}, true},
		"cpu":      {func(g *nusav1.Group) { g.Tasks["a"].Resources.CpuMilli = 100_000 }, true},
		"memory":   {func(g *nusav1.Group) { g.Tasks["b"].Resources.MemoryBytes = 0 }, true},
		"disk":     {func(g *nusav1.Group) { g.Tasks["b"].Resources.DiskBytes = 1 << 40 }, true},
		"count":    {func(g *nusav1.Group) { g.Count = proto.Int32(4) }, true},
		"gpu":      {func(g *nusav1.Group) { g.Tasks["a"].Resources.Gpu = &nusav1.GPU{Count: 1} }, false},
		"env":      {func(g *nusav1.Group) { g.Tasks["a"].Env["A"] = "2" }, false},
		"cpu, env": {func(g *nusav1.Group) { g.Tasks["a"].Env["A"], g.Tasks["a"].Resources.CpuMilli = "2", 7 }, false},
		"name":     {func(g *nusav1.Group) { g.Tasks["c"] = g.Tasks["b"]; delete(g.Tasks, "b") }, false},
		"driver":   {func(g *nusav1.Group) { g.Tasks["a"].Driver = "docker" }, false},
		"pool":     {func(g *nusav1.Group) { g.Pool = "gold" }, false},
	} {
		g := base()
		c.change(g)
		before := proto.CloneOf(g)
		if raw, _ := (proto.MarshalOptions{Deterministic: true}).Marshal(g); EncodedRestHash(raw) != RestHash(g) {
			t.Errorf("%s: another hash of its encoding", name)
		}
		if got := RestHash(g); (got == want) != c.same || got == 0 {
			t.Errorf("%s: hash %x, was %x", name, got, want)
		}
		if !proto.Equal(g, before) {
			t.Errorf("%s: the group was changed", name)
		}
	}
}
