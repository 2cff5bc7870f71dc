package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// absences are ways in which an agent loses its region while its tasks continue. Each
// returns the function that ends the absence.
var absences = []struct {
	name string
	for_ time.Duration
	// lost: the absence lasts longer than the lease and disconnect.after.
	lost  bool
	leave func(f *sim.Federation, agent int) (back func())
}{
	{"cut for a moment", 10 * time.Second, false, cutOff},
	{"cut for long", 5 * time.Minute, true, cutOff},
	{"restarted", 10 * time.Second, false, restarted},
	{"stopped for long", 5 * time.Minute, true, restarted},
}

func cutOff(f *sim.Federation, agent int) func() {
	return f.Cut([]string{f.AgentIP("alpha", agent)}, []string{f.ServerIP("alpha", 1)})
}

func restarted(f *sim.Federation, agent int) func() {
	f.Stop(fmt.Sprintf("alpha-agent-%d", agent))
	return func() { f.StartAgent("alpha", agent) }
}

// oneNode returns the number of the agent that runs an instance of a job.
func oneNode(t *testing.T, f *sim.Federation, name string) int {
	t.Helper()
	runs, err := f.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(100) {
		if r := runs[sim.Instance{Job: name, Group: "web", Index: i}]; len(r) == 1 {
			var n int
			if _, err := fmt.Sscanf(r[0].Agent, "alpha-agent-%d", &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("nothing runs")
	return 0
}

// TestChangesDuringAnAbsence: the node is drained, or its job is stopped or updated, while the
// agent is disconnected. The agent learns that when it is back. Then each wanted instance runs
// once, on the right node and in the right version, and no instance was started more often than
// that needs.
func TestChangesDuringAnAbsence(t *testing.T) {
	const count = 6
	v2 := strings.Replace(service("web", count), "config: {command: serve}", "config: {command: serve}, env: {VERSION: two}", 1)
	for _, absence := range absences {
		for _, decided := range []string{"drain", "stop", "update", "drain and back"} {
			t.Run(absence.name+"/"+decided, func(t *testing.T) {
				inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 3}, func(t *testing.T, f *sim.Federation) {
					f.Submit(service("web", count))
					awaitRunsOnce(f, 10*time.Second, "web", count)
					time.Sleep(10 * time.Second)
					n := oneNode(t, f, "web")
					node := f.Process(fmt.Sprintf("alpha-agent-%d", n)).Node
					before, err := f.Runs(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					drain := func(drain bool) {
						if _, err := nusav1.NewNodesClient(f.Global(1)).Drain(t.Context(), &nusav1.DrainNodeRequest{Id: node, Region: "alpha", Drain: drain}); err != nil {
							t.Fatal(err)
						}
					}
					back := absence.leave(f, n)
					time.Sleep(time.Second)
					switch decided {
					case "drain", "drain and back":
						drain(true)
					case "stop":
						f.StopJob("web")
					case "update":
						f.Submit(v2)
					}
					twice := watchTwice(t, f, absence.for_)
					if decided == "drain and back" {
						drain(false)
					}
					back()
					f.Eventually(3*time.Minute, "the end", func(ctx context.Context) error { return decidedEnd(ctx, f, decided, node, count) })
					time.Sleep(2 * time.Minute)
					if err := decidedEnd(t.Context(), f, decided, node, count); err != nil {
						t.Error(err)
					}
					if twice > 0 && !absence.lost {
						t.Errorf("an instance ran twice for %v, though its node was not lost", twice)
					}
					begun := f.Begun()
					for i := range int32(count) {
						at := sim.Instance{Job: "web", Group: "web", Index: i}
						most := 1
						if here := before[at][0].Agent == fmt.Sprintf("alpha-agent-%d", n); decided == "update" || here && (decided != "stop" || absence.lost) {
							most = 2
						}
						if begun[at] > most {
							t.Errorf("%v was begun %d times, at most %d are needed", at, begun[at], most)
						}
					}
				})
			})
		}
	}
}

// watchTwice lets time pass and returns how long an instance ran twice in that time.
func watchTwice(t *testing.T, f *sim.Federation, d time.Duration) (twice time.Duration) {
	t.Helper()
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		runs, err := f.Runs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			if len(r) > 1 {
				twice += time.Second
				break
			}
		}
	}
	return twice
}

// decidedEnd checks the final state after the decision: a stop leaves nothing, otherwise each
// instance runs once on the right node.
func decidedEnd(ctx context.Context, f *sim.Federation, decided, node string, count int32) error {
	if decided == "stop" {
		return f.Gone(ctx, "web")
	}
	if err := f.RunsOnce(ctx, "web", "web", count); err != nil {
		return err
	}
	list, err := nusav1.NewAllocationsClient(f.Global(1)).List(ctx, &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "web"}})
	if err != nil {
		return err
	}
	version := map[bool]int64{true: 2, false: 1}[decided == "update"]
	for _, a := range list.GetAllocations() {
		if a.GetJobVersion() != version || decided == "drain" && a.GetNodeId() == node || a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING {
			return fmt.Errorf("%v", a)
		}
	}
	j, err := f.Job(ctx, "web")
	if err == nil && (len(list.GetAllocations()) != int(count) || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING) {
		err = fmt.Errorf("%d allocations, %v", len(list.GetAllocations()), j.GetStatus())
	}
	return err
}

// TestAgentLeaves: a leaving agent stops its tasks and says goodbye, and its work moves at once. A
// disconnected agent also stops its tasks when it leaves, and reports what it can. When it starts
// again, it is the same node and restarts nothing.
func TestAgentLeaves(t *testing.T) {
	for _, c := range []struct {
		name string
		// cut is how long the agent is cut off before it leaves; 0 = until it has left.
		cut    bool
		heals  time.Duration
		within time.Duration // bound until the work runs elsewhere
	}{
		{"connected", false, 0, 10 * time.Second},
		{"cut off", true, 0, time.Minute},
		{"cut off and back meanwhile", true, 3 * time.Second, 20 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 3, Leave: true}, func(t *testing.T, f *sim.Federation) {
				// The tasks take 6 s to stop.
				f.Submit(strings.Replace(service("web", 6), "config: {command: serve}", "config: {command: serve}, env: {SIM_STOP_DELAY: 6s}", 1))
				awaitRunsOnce(f, 10*time.Second, "web", 6)
				n := oneNode(t, f, "web")
				name := fmt.Sprintf("alpha-agent-%d", n)
				node := f.Process(name).Node
				before, err := f.Runs(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				heal := func() {}
				if c.cut {
					heal = cutOff(f, n)
				}
				began := time.Now()
				if c.heals > 0 {
					time.AfterFunc(c.heals, heal)
				}
				f.Stop(name)
				if d := time.Since(began); d < 6*time.Second || d > 30*time.Second { // at most one lease until the agent knows that no server listens
					t.Errorf("it took %v to leave", d)
				}
				state := func() nusav1.NodeState {
					x, err := nusav1.NewNodesClient(f.Global(1)).Get(t.Context(), &nusav1.GetNodeRequest{Id: node, Region: "alpha"})
					if err != nil {
						t.Fatal(err)
					}
					return x.GetState()
				}
				if s := state(); (s == nusav1.NodeState_NODE_STATE_LEFT) != (!c.cut || c.heals > 0) {
					t.Errorf("it is %v", s)
				}
				awaitRunsOnce(f, c.within, "web", 6)
				heal()
				// The absence is longer than the region waits for lost nodes.
				time.Sleep(2 * time.Minute)
				f.StartAgent("alpha", n)
				f.AwaitRegions()
				time.Sleep(time.Minute)
				awaitRunsOnce(f, 10*time.Second, "web", 6)
				if s := state(); s != nusav1.NodeState_NODE_STATE_READY {
					t.Errorf("back again it is %v", s)
				}
				begun := f.Begun()
				for i := range int32(6) {
					at := sim.Instance{Job: "web", Group: "web", Index: i}
					want := 1
					if before[at][0].Agent == name {
						want = 2
					}
					if begun[at] != want {
						t.Errorf("%v was begun %d times, want %d", at, begun[at], want)
					}
				}
				list, err := f.Allocations(t.Context(), "alpha")
				if err != nil {
					t.Fatal(err)
				}
				for _, a := range list {
					// The agent reported at last that its tasks have stopped, or the node was lost.
					if a.GetNodeId() == node && a.GetState() <= nusav1.AllocState_ALLOC_STATE_RUNNING {
						t.Errorf("%v", a)
					}
				}
			})
		})
	}
}
