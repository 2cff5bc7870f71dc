package register_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/regional/register"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// world has the services of two versions of a group. In the task states of an allocation, each letter
// is a task that is up.
var world = register.Group{
	Region: "singapore", Job: "api",
	Services: func(version int64) []register.Service {
		switch version {
		case 1:
			return []register.Service{{Name: "web", Port: "http"}}
		case 2:
			return []register.Service{{Name: "admin", Port: "admin", Checks: []string{"a"}}, {Name: "web", Port: "http", Tags: []string{"blue"}}}
		}
		return nil
	},
	Up: func(tasks []byte, names []string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { return !strings.Contains(string(tasks), n) })
	},
	Address: func(node string) string {
		return map[string]string{"n1": "10.0.0.1", "n2": "10.0.0.2:7620", "n3": "", "n4": "fd00::4"}[node]
	},
}

func alloc(version int64, node string, change func(*state.Alloc)) *state.Alloc {
	a := &state.Alloc{
		ID: "a1", Placement: &state.Placement{Namespace: "default", Job: "api", Group: "web", JobVersion: version},
		NodeRef: &state.NodeRef{NodeID: node, NodeName: node}, Grants: &state.Grants{Ports: []state.PortGrant{{Label: "http", Port: 20000}, {Label: "admin", Port: 20001}}},
		Desired: state.Run, State: state.Running, UpUnixNano: 1, Tasks: []byte("ab"), Index: 3,
	}
	if change != nil {
		change(a)
	}
	return a
}

func show(of []*state.Alloc) string {
	var out []string
	for _, i := range register.Instances(slices.Values(of), world) {
		out = append(out, fmt.Sprintf("%s%v=%s:%d", i.Service, i.Tags, i.Address, i.Port))
	}
	return strings.Join(out, " ")
}

func TestHealthyInstancesAreRegistered(t *testing.T) {
	for name, c := range map[string]struct {
		alloc *state.Alloc
		want  string
	}{
		"healthy":                  {alloc(1, "n1", nil), "web[]=10.0.0.1:20000"},
		"address with a port":      {alloc(1, "n2", nil), "web[]=10.0.0.2:20000"},
		"node without address":     {alloc(1, "n3", nil), "web[]=127.0.0.1:20000"},
		"IPv6":                     {alloc(1, "n4", nil), "web[]=fd00::4:20000"},
		"version of the alloc":     {alloc(2, "n1", nil), "admin[]=10.0.0.1:20001 web[blue]=10.0.0.1:20000"},
		"no services":              {alloc(3, "n1", nil), ""},
		"a task is down":           {alloc(2, "n1", func(a *state.Alloc) { a.UpUnixNano, a.Tasks = 0, []byte("a") }), "admin[]=10.0.0.1:20001"},
		"the checked one is":       {alloc(2, "n1", func(a *state.Alloc) { a.UpUnixNano, a.Tasks = 0, []byte("b") }), ""},
		"starting":                 {alloc(1, "n1", func(a *state.Alloc) { a.State, a.UpUnixNano = state.Starting, 0 }), ""},
		"stopping":                 {alloc(1, "n1", func(a *state.Alloc) { a.Desired = state.Stop }), ""},
		"ended":                    {alloc(2, "n1", func(a *state.Alloc) { a.State = state.Failed }), ""},
		"the node is lost":         {alloc(2, "n1", func(a *state.Alloc) { a.Disconnected = true }), ""},
		"the node is drained":      {alloc(1, "n1", func(a *state.Alloc) { a.Moving = true }), "web[]=10.0.0.1:20000"},
		"placed without ports":     {alloc(1, "n1", func(a *state.Alloc) { a.Grants = &state.Grants{} }), ""},
		"proves a new version":     {alloc(1, "n1", func(a *state.Alloc) { a.Proving = true }), "web[]=10.0.0.1:20000"},
		"checks before all are up": {alloc(2, "n1", func(a *state.Alloc) { a.State, a.UpUnixNano = state.Starting, 0 }), "admin[]=10.0.0.1:20001"},
	} {
		if got := show([]*state.Alloc{c.alloc}); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestInstancesAsBruteForce compares Instances of random allocations with the definition, for each
// allocation and service alone.
func TestInstancesAsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*state.Alloc
		want := map[string]bool{}
		for n := range rapid.IntRange(0, 8).Draw(t, "allocations") {
			a := alloc(rapid.Int64Range(1, 3).Draw(t, "version"), rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"), func(a *state.Alloc) {
				a.ID = fmt.Sprint(n)
				a.State = rapid.SampledFrom([]state.AllocState{state.Pending, state.Starting, state.Running, state.Failed, state.Stopped}).Draw(t, "state")
				a.UpUnixNano = rapid.Int64Range(0, 1).Draw(t, "up")
				a.Disconnected = rapid.Bool().Draw(t, "disconnected")
				a.Desired = rapid.SampledFrom([]state.Desired{state.Run, state.Stop}).Draw(t, "desired")
				a.Tasks = []byte(rapid.SampledFrom([]string{"", "a", "b", "ab"}).Draw(t, "tasks"))
			})
			all = append(all, a)
			for _, s := range world.Services(a.JobVersion) {
				serves := a.State == state.Running && a.UpUnixNano == 1
				if s.Name == "admin" {
					serves = (a.State == state.Running || a.State == state.Starting || a.State == state.Pending) && strings.Contains(string(a.Tasks), "a")
				}
				if serves && !a.Disconnected && a.Desired == state.Run {
					want[a.ID+"/"+s.Name] = true
				}
			}
		}
		got := register.Instances(slices.Values(all), world)
		if len(got) != len(want) {
			t.Fatalf("%d instances, want %d", len(got), len(want))
		}
		for _, i := range got {
			if !want[i.Key()] {
				t.Fatalf("%s is registered, want %v", i.Key(), want)
			}
			if err := i.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
