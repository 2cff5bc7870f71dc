package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// onlyAlpha restricts a job to the region alpha.
const onlyAlpha = "regions: {allow: [{name: alpha}]}"

// shownAs checks what clients see of an instance that may still run on a lost node.
func shownAs(ctx context.Context, f *sim.Federation, name, says string) error {
	j, err := f.Job(ctx, name)
	if err != nil {
		return err
	}
	s := j.GetStatus()
	if s.GetState() != nusav1.JobState_JOB_STATE_PENDING || !strings.Contains(s.GetMessage(), says) || s.GetGroups()["web"].GetCounts().GetLost() == 0 {
		return fmt.Errorf("%s is %v", name, s)
	}
	if len(s.GetGroups()["web"].GetSlots()) == 0 || s.GetGroups()["web"].GetUnowned() > 0 {
		return fmt.Errorf("%s has no owner: %v", name, s)
	}
	var e *nusav1.Explanation
	err = f.OnGlobal(func(conn *grpc.ClientConn) (err error) {
		e, err = nusav1.NewJobsClient(conn).Explain(ctx, &nusav1.ExplainRequest{Job: &nusav1.JobRef{Namespace: "default", Name: name}})
		return err
	})
	if err != nil {
		return err
	}
	if g := e.GetGroups(); len(g) != 1 || len(g[0].GetPending()) == 0 || !strings.Contains(g[0].GetPending()[0].GetMessage(), says) ||
		!strings.Contains(g[0].GetPending()[0].GetMessage(), "nusa node remove") {
		return fmt.Errorf("%s is explained by %v", name, e)
	}
	return nil
}

// ids returns the allocations of a job that really run.
func ids(t *testing.T, f *sim.Federation, name string) (out []string) {
	t.Helper()
	runs, err := f.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range runs {
		for _, run := range r {
			if i.Job == name {
				out = append(out, run.Alloc)
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestDisconnectedWithoutAnotherNode: an agent is disconnected for longer than
// disconnect.after, and no other node fits its instances. The same allocations continue,
// whatever happens to masters and global servers meanwhile; none is restarted. Clients
// see which instances may still run, and where.
func TestDisconnectedWithoutAnotherNode(t *testing.T) {
	for _, absence := range absences {
		for _, meanwhile := range []string{"nothing", "master", "global", "both cut"} {
			t.Run(absence.name+"/"+meanwhile, func(t *testing.T) {
				opts := sim.Options{Regions: []string{"alpha", "beta"}, Globals: 2, Servers: 1, Agents: 1, Disk: true}
				inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
					f.Submit(service("web", 2, onlyAlpha))
					awaitRunsOnce(f, 10*time.Second, "web", 2)
					time.Sleep(10 * time.Second)
					before := ids(t, f, "web")
					back := absence.leave(f, 1)
					time.Sleep(time.Second)
					switch meanwhile {
					case "master":
						time.Sleep(min(absence.for_/4, time.Minute))
						f.Kill("alpha-1")
						f.StartServer("alpha", 1)
					case "global":
						time.Sleep(min(absence.for_/4, time.Minute))
						f.Kill(fmt.Sprintf("global-%d", f.Active()))
					case "both cut":
						heal := f.Cut([]string{f.ServerIP("alpha", 1)}, f.GlobalIPs())
						time.AfterFunc(absence.for_/2, heal)
					}
					if twice := watchTwice(t, f, absence.for_); twice > 0 {
						t.Errorf("an instance ran twice for %v", twice)
					}
					if absence.lost {
						f.Eventually(2*time.Minute, "what clients see", func(ctx context.Context) error {
							return shownAs(ctx, f, "web", "alpha-agent-1 has been silent for")
						})
					}
					back()
					awaitRunsOnce(f, 10*time.Second, "web", 2)
					time.Sleep(2 * time.Minute)
					stayed(t, f, before)
					j, err := f.Job(t.Context(), "web")
					if err != nil || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
						t.Errorf("%v, %v", j.GetStatus(), err)
					}
				})
			})
		}
	}
}

// TestDisconnectedAndAnotherRegionHasRoom: the instances move to the other region, at once or
// later, and the originals stop when their node is back.
func TestDisconnectedAndAnotherRegionHasRoom(t *testing.T) {
	for _, later := range []bool{false, true} {
		t.Run(fmt.Sprint(later), func(t *testing.T) {
			inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Agents: 1}, func(t *testing.T, f *sim.Federation) {
				if later {
					f.Stop("beta-agent-1")
					time.Sleep(time.Minute)
				}
				f.Submit(service("web", 3, "regions: {prefer: [{name: alpha, weight: 100}]}"))
				awaitRunsOnce(f, 10*time.Second, "web", 3)
				before := ids(t, f, "web")
				events := follow(t, f.Global(1), &nusav1.WatchEventsRequest{})
				back := cutOff(f, 1)
				if later {
					f.Eventually(2*time.Minute, "it waits", func(ctx context.Context) error { return shownAs(ctx, f, "web", "alpha-agent-1 has been silent for") })
					f.StartAgent("beta", 1)
				}
				f.Eventually(time.Minute, "it moves", func(ctx context.Context) error {
					owners, err := f.Owners(ctx, "web", "web")
					for i := range int32(3) {
						if err == nil && owners[i] != "beta" {
							err = fmt.Errorf("instance %d belongs to %q", i, owners[i])
						}
					}
					return err
				})
				// Meanwhile both may run, as disconnect allows.
				time.Sleep(2 * time.Minute)
				j, err := f.Job(t.Context(), "web")
				if err != nil || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
					t.Errorf("%v, %v", j.GetStatus(), err)
				}
				back()
				awaitRunsOnce(f, 20*time.Second, "web", 3)
				for _, id := range ids(t, f, "web") {
					if slices.Contains(before, id) {
						t.Errorf("the original %s runs", id)
					}
				}
				if !slices.ContainsFunc(events(), func(ev *nusav1.Event) bool {
					return ev.GetType() == "slot.revoking" && strings.Contains(ev.GetMessage(), "alpha-agent-1 is disconnected and may run it until it reconnects")
				}) {
					t.Error("no event says that the instance may run twice")
				}
				for i, n := range f.Begun() {
					if n != 2 {
						t.Errorf("%v was begun %d times", i, n)
					}
				}
			})
		})
	}
}

// TestBackDuringTheRevoke: another region has room, and the revoke of the disconnected instances is
// in flight when their node connects again. The instances stay on their node, and none is
// restarted.
func TestBackDuringTheRevoke(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Agents: 1}, func(t *testing.T, f *sim.Federation) {
		f.Stop("beta-agent-1")
		time.Sleep(time.Minute)
		f.Submit(service("web", 3, "regions: {prefer: [{name: alpha, weight: 100}]}"))
		awaitRunsOnce(f, 10*time.Second, "web", 3)
		before := ids(t, f, "web")
		events := follow(t, f.Global(1), &nusav1.WatchEventsRequest{})
		back := cutOff(f, 1)
		f.Eventually(2*time.Minute, "it waits", func(ctx context.Context) error { return shownAs(ctx, f, "web", "alpha-agent-1 has been silent for") })
		heal := f.Cut([]string{f.ServerIP("alpha", 1)}, f.GlobalIPs())
		f.StartAgent("beta", 1)
		time.Sleep(2 * time.Second) // revoked by the global tier; alpha has not received the order yet
		back()
		time.Sleep(3 * time.Second)
		heal()
		time.Sleep(2 * time.Minute)
		stayed(t, f, before)
		types := map[string]int{}
		for _, ev := range events() {
			types[ev.GetType()]++
		}
		if types["slot.revoking"] == 0 || types["slot.kept"] == 0 {
			t.Errorf("events %v: the instance was not revoked and retained", types)
		}
		j, err := f.Job(t.Context(), "web")
		if err != nil || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
			t.Errorf("%v, %v", j.GetStatus(), err)
		}
	})
}

// TestChangesWhileTheOnlyNodeIsDisconnected: a change of a job that may still run on its only
// node reaches the node when it is back.
func TestChangesWhileTheOnlyNodeIsDisconnected(t *testing.T) {
	v2 := strings.Replace(service("web", 2, onlyAlpha), "config: {command: serve}", "config: {command: serve}, env: {VERSION: two}", 1)
	for _, c := range []struct {
		decided string
		count   int32 // at the end
		begun   int   // starts of each instance
	}{{"stop", 0, 1}, {"purge", 0, 1}, {"update", 2, 2}, {"scale", 1, 1}, {"disconnect.running: stop", 2, 2}} {
		t.Run(c.decided, func(t *testing.T) {
			inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 1}, func(t *testing.T, f *sim.Federation) {
				spec := service("web", 2, onlyAlpha)
				if c.decided == "disconnect.running: stop" {
					spec += "    disconnect: {node: {running: stop}}\n"
				}
				f.Submit(spec)
				awaitRunsOnce(f, 10*time.Second, "web", 2)
				time.Sleep(10 * time.Second)
				back := cutOff(f, 1)
				time.Sleep(2 * time.Minute)
				switch c.decided {
				case "stop":
					f.StopJob("web")
				case "purge":
					if _, err := nusav1.NewJobsClient(f.Global(1)).Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "web"}, Purge: true}); err != nil {
						t.Fatal(err)
					}
				case "update":
					f.Submit(v2)
				case "scale":
					f.Submit(service("web", 1, onlyAlpha))
				}
				time.Sleep(time.Minute)
				back()
				time.Sleep(2 * time.Minute)
				runs, err := f.Runs(t.Context())
				if err != nil || len(runs) != int(c.count) {
					t.Errorf("%v run, %v", runs, err)
				}
				if c.count > 0 {
					awaitRunsOnce(f, time.Minute, "web", c.count)
				}
				for i, n := range f.Begun() {
					if n != c.begun {
						t.Errorf("%v was begun %d times, want %d", i, n, c.begun)
					}
				}
			})
		})
	}
}

// stayed checks that web runs in the same allocations as before, each once and started once.
func stayed(t *testing.T, f *sim.Federation, before []string) {
	t.Helper()
	if err := f.RunsOnce(t.Context(), "web", "web", int32(len(before))); err != nil {
		t.Error(err)
	}
	if after := ids(t, f, "web"); !slices.Equal(before, after) {
		t.Errorf("%v run, it was %v", after, before)
	}
	for i, n := range f.Begun() {
		if n != 1 {
			t.Errorf("%v was begun %d times", i, n)
		}
	}
}
