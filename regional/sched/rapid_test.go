package sched_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"pgregory.net/rapid"
)

// declinedNow returns the nodes that declined an instance less than a minute ago and
// have not reconnected since.
func declinedNow(in sched.Input, inst state.Instance) (out []string) {
	memory := time.Minute
	if inst.Reason == "agent_busy" {
		memory = 5 * time.Second
	}
	if in.NowUnixNano-inst.EndedUnixNano >= int64(memory) {
		return nil
	}
	for _, id := range inst.Declined {
		if n, ok := in.View.Node(id); !ok || n.Status != state.NodeReady || n.StatusUnixNano <= inst.EndedUnixNano {
			out = append(out, id)
		}
	}
	return out
}

var (
	pools  = rapid.SampledFrom([]string{"", "", "", "pool=b"})
	hosts  = rapid.SampledFrom([]string{"", "", "", "", "", "control=yes", "disk=1", "disk=0", "drivers=docker", "drivers=docker:exec,!vm", "drivers=vm"})
	racks  = rapid.SampledFrom([]string{"", "labels=rack:a", "labels=rack:b,disk:ssd", "labels=rack:c,disk:hdd"})
	gpus   = rapid.SampledFrom([]string{"", "", "gpus=t4", "gpus=t4,a100,h100", "gpus=a100,a100"})
	allows = rapid.SampledFrom([]string{"", "", "", "allow=none", "allow=/srv", "allow=/mnt,/srv/b"})
	quotas = rapid.SampledFrom([]string{"", "", "", "quota=2"})
)

func drawNode(t *rapid.T, id string) string {
	return fmt.Sprintf("node %s cpu=%d mem=%d ports=20000,2000%d %s %s %s %s %s %s", id,
		rapid.IntRange(1, 4).Draw(t, "cpu")*1000, rapid.IntRange(1, 4).Draw(t, "mem")*1024, rapid.IntRange(0, 5).Draw(t, "ports"),
		pools.Draw(t, "pool"), racks.Draw(t, "rack"), gpus.Draw(t, "gpus"), quotas.Draw(t, "quota"), hosts.Draw(t, "host"), allows.Draw(t, "allow"))
}

func drawJob(t *rapid.T, name string, version int) string { return drawGroup(t, name, "g", version) }

func drawGroup(t *rapid.T, name, group string, version int) string {
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	// Some jobs need most of a node. They wait until a node is reserved for them.
	cpu := rapid.SampledFrom([]int{0, 1, 1, 2, 2, 3, 5, 8, 10, 12, 15, 20, 30, 40}).Draw(t, "cpu")
	return fmt.Sprintf("job %s %s v=%d priority=%d cpu=%d mem=%d %s %s %s %s %s %s %s %s %s %s %s %s %s %s", name, group, version,
		40+10*(int(name[len(name)-1])%3), cpu*100, rapid.IntRange(1, 15).Draw(t, "mem")*100,
		pick("disk", "", "", "", "disk=2"), pick("drivers", "", "", "", "", "drivers=docker", "drivers=docker:exec", "drivers=vm"),
		pick("type", "", "", "type=batch", "type=system"),
		pick("spread", "", "", "spread=rack", "spread=disk"), pick("pool", "", "", "", "pool=b"),
		pick("constraint", "", "", "", "constraints=disk:ssd", "constraints=disk!:ssd", "constraints=disk:ssd,rack:b", "constraints=nonsense"),
		pick("affinity", "", "", "affinities=disk:ssd@50", "affinities=rack:a@-20,disk:hdd@70"),
		pick("ports", "", "", "ports=http", "ports=http:8080,rpc", "ports=a,b", "ports=a,b:20001", "ports=a:20000,b:20000"),
		pick("gpus", "", "", "", "gpus=1", "gpus=300m@t4", "gpus=500m,1@a100", "gpus=500m,500m,1@t4", "gpus=2@a100|h100", "gpus=1:400m@t4|a100,1000m"),
		pick("dedicated", "", "", "", "dedicated=yes"),
		pick("apart", "", "", "", "", "apart=x", "apart=y,x", "apart=y,z"),
		pick("volumes", "", "", "", "", "", "volumes=/srv/a", "volumes=/srv/b,/mnt"),
		pick("disconnect", "", "after=1s", "replace=no", "running=stop after=1s", "reconcile=replacement", "singleton=yes after=1s", "region=stop after=1s"),
		pick("update", "", "parallel=3", "attempts=1"))
}

// TestRandomLife: in the random life of a region, the same rules are kept at every step.
func TestRandomLife(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.shadow = restore(t, w.st)
		nodes := rapid.IntRange(1, 8).Draw(t, "nodes")
		for i := range nodes {
			w.must(t, drawNode(t, fmt.Sprint("n", i)))
		}
		seen := map[string]state.AllocState{}
		jobs, late := 0, &sched.Plan{}
		planner := sched.NewPlanner()
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			jobs = w.randomStep(t, nodes, jobs)
			in := w.input()
			hash := in.View.Hash()
			p := sched.Make(in)
			if q := sched.Make(in); q.String() != p.String() {
				t.Fatalf("two plans of one view:\n%s", q.Diff(p))
			}
			if rapid.Bool().Draw(t, "kept") { // some steps skip this, so that the planner sometimes processes several changes at once
				if q := planner.Make(in); !reflect.DeepEqual(p, q) {
					t.Fatalf("a planner that has seen earlier views plans otherwise:\n%s", q.Diff(p))
				}
			}
			if err := sched.Check(in, p); err != nil {
				t.Fatalf("%v\n%s", err, p)
			}
			w.checkExplain(w.checkPlan(t, in, p))
			w.checkShape(t, in)
			switch rapid.IntRange(0, 4).Draw(t, "apply") {
			case 0:
			case 1: // a plan that was made for an old view
				w.applyPlan(t, late)
				late = p
			default:
				w.applyPlan(t, p)
			}
			if in.View.Hash() != hash {
				t.Fatal("a snapshot has changed")
			}
			checkWorld(t, w, seen)
			w.checkShadow(t)
			checkAnswers(t, w.st.Snapshot())
		}
		w.quiesce(t)
	})
}

// applyPlan applies a plan as a whole, or only those parts that are still valid. No node
// may ever have more allocated than its capacity.
func (w *world) applyPlan(t *rapid.T, p *sched.Plan) {
	for _, c := range p.Commands(w.newID, 3) {
		before := w.st.Snapshot()
		w.apply(state.Command{ApplyPlan: &c})
		for n, u := range w.st.NodesInUse() {
			free := n.Capacity.Sub(u.Resources)
			more := u.Allocs > before.Use(n.ID).Allocs
			if more && (free.CPUMilli < 0 || free.MemoryBytes < 0 || free.DiskBytes < 0 || n.InstanceQuota > 0 && u.Allocs > n.InstanceQuota) {
				t.Fatalf("node %s is over-committed: %+v\n%s", n.Name, *u, p)
			}
		}
		checkCharges(t, w.st.Snapshot())
	}
}

// checkAnswers checks the answers. A slot that is answered as ended has ended. A part that
// is given back has no live allocation on a connected node.
func checkAnswers(t *rapid.T, v *state.View) {
	for _, a := range accept.Answers(v) {
		key := state.GroupKey{Namespace: a.Namespace, Job: a.Job, Group: a.Group}
		for al := range v.GroupAllocs(key) {
			if a.State == state.SlotAccepted || al.Index < a.From || al.Index >= a.To || !al.Live() {
				continue
			}
			// A part may be given back while a lost node may still run it. It may also be
			// given back before a node that returned has received the order to stop.
			left := a.State == state.SlotReturned && (al.Disconnected || al.Desired == state.Stop || cameBack(v, al))
			if !left {
				t.Fatalf("%+v, but %s is %s", a, al.ID, al.State)
			}
		}
		for i := a.From; i < a.To; i++ {
			g, _ := v.Group(key)
			wanted := false
			for _, s := range g.Slots {
				wanted = wanted || s.Generation == a.Generation && s.Wants(i)
			}
			if wanted != (a.State == state.SlotAccepted || a.State == state.SlotDone) {
				t.Fatalf("%+v, but index %d is wanted: %v", a, i, wanted)
			}
		}
	}
}

// cameBack reports whether an allocation's node was lost after the placement.
func cameBack(v *state.View, al *state.Alloc) bool {
	n, ok := v.Node(al.NodeID)
	return ok && n.StatusUnixNano >= al.CreatedUnixNano && n.StatusUnixNano > n.RegisteredUnixNano
}

func (w *world) must(t *rapid.T, line string) {
	w.out.Reset()
	tt := &testing.T{}
	w.run(tt, "random", line)
}

func (w *world) randomStep(t *rapid.T, nodes, jobs int) int {
	node := fmt.Sprint("n", rapid.IntRange(0, nodes-1).Draw(t, "node"))
	switch op := rapid.IntRange(0, 24).Draw(t, "op"); op {
	case 23:
		w.must(t, "clock by="+rapid.SampledFrom([]string{"3s", "1h"}).Draw(t, "clock"))
	case 24:
		w.must(t, "election")
	case 0:
		w.must(t, "status "+node+" lost")
	case 1:
		w.must(t, "status "+node+" ready")
	case 2:
		w.must(t, "drain "+node)
	case 3:
		w.must(t, "drain "+node+" off")
	case 4:
		w.must(t, "cordon "+node)
	case 5:
		w.must(t, "cordon "+node+" off")
	case 6:
		w.must(t, drawNode(t, node))
	case 7:
		w.must(t, "converge")
	case 8:
		w.must(t, rapid.SampledFrom([]string{"tick 3s", "tick 20s", "tick 1m", "tick 1m", "tick 11m"}).Draw(t, "tick"))
	case 9:
		w.must(t, "remove "+node)
	case 10, 11:
		w.randomReport(t)
	case 12:
		if jobs > 0 {
			w.orderAll(t, fmt.Sprint("j", rapid.IntRange(0, jobs-1).Draw(t, "job")), rapid.IntRange(1, 6).Draw(t, "to"),
				" desired="+rapid.SampledFrom([]string{"", "stop", "revoke"}).Draw(t, "desired"))
		}
	case 13:
		if jobs > 0 { // another version, whose group mostly has another hash
			name := fmt.Sprint("j", rapid.IntRange(0, jobs-1).Draw(t, "job"))
			was := w.jobs[name]
			w.must(t, drawJob(t, name, int(was.Version)+1))
			w.jobs[name].Type = was.Type
			w.orderAll(t, name, rapid.IntRange(1, 6).Draw(t, "to"), "")
		}
	case 14:
		w.must(t, "return")
	case 15:
		w.must(t, "purge")
	case 16:
		w.randomSlot(t)
	case 17:
		if jobs > 0 {
			name := fmt.Sprint("j", rapid.IntRange(0, jobs-1).Draw(t, "job"))
			w.must(t, fmt.Sprintf("local %s count=%d hash=%d", name, rapid.IntRange(0, 4).Draw(t, "count"), rapid.IntRange(0, 1).Draw(t, "hash")))
		}
	case 18:
		if jobs > 0 {
			name := fmt.Sprint("j", rapid.IntRange(0, jobs-1).Draw(t, "job"))
			w.must(t, "stop "+name+rapid.SampledFrom([]string{"", " purge=yes"}).Draw(t, "purge"))
		}
	default:
		name := fmt.Sprint("j", jobs)
		jobs++
		w.must(t, drawJob(t, name, 1))
		to := rapid.IntRange(1, 8).Draw(t, "to")
		if w.jobs[name].Type == state.System {
			to = 1
		}
		w.must(t, fmt.Sprintf("order %s 0-%d", name, to))
	}
	return jobs
}

// orderAll orders the first instances of a job as one slot. That slot replaces slots that
// overlap it, because slots of the global tier overlap only between the parts of one
// change.
func (w *world) orderAll(t *rapid.T, job string, to int, rest string) {
	var under []string
	for s := range w.st.Slots() {
		if !s.Local && s.Job == job && s.From > 0 && int(s.From) < to {
			under = append(under, s.ID())
		}
	}
	if len(under) > 0 {
		rest += " more=yes"
	}
	w.must(t, fmt.Sprintf("order %s 0-%d%s", job, to, rest))
	if len(under) > 0 {
		w.must(t, "removed "+strings.Join(under, " "))
	}
}

// randomSlot changes a slot like the global tier: it narrows, splits or removes the slot.
func (w *world) randomSlot(t *rapid.T) {
	var slots []*state.Slot
	for s := range w.st.Slots() {
		if !s.Local {
			slots = append(slots, s)
		}
	}
	if len(slots) == 0 {
		return
	}
	s := slots[rapid.IntRange(0, len(slots)-1).Draw(t, "slot")]
	if rapid.Bool().Draw(t, "remove") {
		w.must(t, "removed "+s.ID())
		return
	}
	cut := rapid.Int32Range(s.From, s.To).Draw(t, "cut")
	if cut > s.From {
		w.must(t, fmt.Sprintf("order %s %d-%d gen=%d more=yes", s.Job, s.From, cut, s.Generation))
	}
	if cut < s.To {
		w.must(t, fmt.Sprintf("order %s %d-%d gen=%d desired=%s", s.Job, cut, s.To, s.Generation,
			rapid.SampledFrom([]string{"", "stop"}).Draw(t, "desired")))
	}
	w.must(t, "removed")
}

func (w *world) randomReport(t *rapid.T) {
	var live []string
	for a := range w.st.Allocs() {
		live = append(live, a.ID)
	}
	if len(live) > 0 {
		w.must(t, "report "+rapid.SampledFrom(live).Draw(t, "alloc")+" "+
			rapid.SampledFrom([]string{"starting", "running", "complete", "failed", "stopped", "declined", "declined reason=agent_busy", "pending"}).Draw(t, "state"))
	}
}

// checkWorld checks the invariants. It computes them from the allocations alone.
func checkWorld(t *rapid.T, w *world, seen map[string]state.AllocState) {
	live := map[string]int{}
	for a := range w.st.Allocs() {
		if a.State < seen[a.ID] || seen[a.ID].Terminal() && a.State != seen[a.ID] {
			t.Fatalf("%s went from %s to %s", a.ID, seen[a.ID], a.State)
		}
		seen[a.ID] = a.State
		if a.Live() && !a.Disconnected {
			live[fmt.Sprint(a.Key(), a.Index)]++
		}
	}
	disconnectedOnce := map[string]bool{}
	for a := range w.st.Allocs() {
		job, ok := w.st.Job(a.Key().JobKey(), a.JobVersion)
		if ok && job.Group(a.Group).Disconnect.Replace && !job.Group(a.Group).Singleton {
			disconnectedOnce[fmt.Sprint(a.Key(), a.Index)] = true
		}
	}
	for k, n := range live {
		if n > 1 && !disconnectedOnce[k] {
			t.Fatalf("%s is live %d times", k, n)
		}
	}
	checkCharges(t, w.st.Snapshot())
}

// checkCharges compares the stored charges with the allocations.
func checkCharges(t *rapid.T, v *state.View) {
	for n, u := range v.NodesInUse() {
		var sum state.Resources
		var allocs, ports int
		var apart []string
		for a := range v.NodeAllocs(n.ID) {
			if a.Charged {
				sum = sum.Add(a.Resources)
				allocs++
				ports += len(a.Ports)
				apart = append(apart, a.Apart...)
			}
		}
		if sum != u.Resources || allocs != int(u.Allocs) || ports != len(u.Ports) {
			t.Fatalf("node %s is charged for %+v, its allocations for %v, %d, %d ports", n.Name, u, sum, allocs, ports)
		}
		if w := slices.Compact(slices.Clone(u.Ports)); len(w) != len(u.Ports) {
			t.Fatalf("node %s gave a port twice: %v", n.Name, u.Ports)
		}
		slices.Sort(apart)
		if w := slices.Compact(slices.Clone(apart)); !slices.Equal(apart, u.Apart) || len(w) != len(apart) {
			t.Fatalf("node %s is charged for the tags %v, its allocations for %v", n.Name, u.Apart, apart)
		}
		for i, m := range u.GPUMilli {
			if m < 0 || m > 1000 {
				t.Fatalf("node %s gave %d of gpu %d", n.Name, m, i)
			}
		}
	}
}

// quiesce lets every due event happen. After that the plan must stay empty.
func (w *world) quiesce(t *rapid.T) {
	for range 200 {
		w.must(t, "converge")
		p := sched.Make(w.input())
		for _, c := range p.Commands(w.newID, 5) {
			if r := w.apply(state.Command{ApplyPlan: &c}); len(r.Skipped) > 0 {
				t.Fatalf("skipped %v", r.Skipped)
			}
		}
		if p.Wake > 0 && p.Wake <= 24*time.Hour { // another node may be reserved later
			w.pass(p.Wake)
			continue
		}
		if p.Empty() {
			w.must(t, "converge")
			w.pass(24 * time.Hour)
			p = sched.Make(w.input())
			if !p.Empty() {
				t.Fatalf("the plan of a quiet view:\n%s", p)
			}
			w.complete(t, p)
			return
		}
	}
	t.Fatalf("the region does not come to rest:\n%s", sched.Make(w.input()))
}

// restore encodes and decodes the state like a snapshot.
func restore(t *rapid.T, s *state.State) *state.State {
	var buf bytes.Buffer
	enc := codec.NewEncoder(&buf, &codec.MsgpackHandle{})
	for r := range s.Snapshot().Records() {
		if err := enc.Encode(&r); err != nil {
			t.Fatal(err)
		}
	}
	dec := codec.NewDecoder(&buf, &codec.MsgpackHandle{})
	restored, err := state.Restore(func(yield func(state.Record, error) bool) {
		for {
			var r state.Record
			err := dec.Decode(&r)
			if errors.Is(err, io.EOF) || !yield(r, err) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return restored
}

// checkShadow compares the state with a shadow. The shadow was restored at random times and
// applied the same commands. Records, counts and plans must be equal.
func (w *world) checkShadow(t *rapid.T) {
	if a, b := w.st.Snapshot().Hash(), w.shadow.Snapshot().Hash(); a != b {
		t.Fatal("a restored state differs")
	}
	if a, b := summary(w.st), summary(w.shadow); a != b {
		t.Fatalf("counts\n%s\nof a restored state\n%s", a, b)
	}
	in := w.input()
	restored := in
	restored.View = w.shadow.Snapshot()
	if d := sched.Make(restored).Diff(sched.Make(in)); d != "" {
		t.Fatalf("the plan of a restored state differs:\n%s", d)
	}
	if rapid.IntRange(0, 3).Draw(t, "restore") == 0 {
		w.shadow = restore(t, w.st)
		if a, b := summary(w.st), summary(w.shadow); a != b {
			t.Fatalf("counts\n%s\nrestored\n%s", a, b)
		}
	}
}

func summary(s *state.State) string {
	var b strings.Builder
	for g := range s.Groups() {
		fmt.Fprintf(&b, "%s %+v %d\n", g.Key, g.Counts, g.Wanted)
	}
	for g := range s.Undecided() {
		fmt.Fprintf(&b, "unsettled %s\n", g.Key)
	}
	fmt.Fprintln(&b, s.AllocCounts(), s.Allocated())
	for n, u := range s.NodesInUse() {
		fmt.Fprintf(&b, "%s %+v\n", n.ID, *u)
	}
	return b.String()
}

// complete checks a region in which nothing is due. Every wanted instance is live once, in
// the present version and on a node that fits, or the plan says why it waits. Nothing else
// is live.
func (w *world) complete(t *rapid.T, p *sched.Plan) {
	explained, stalled := map[string]bool{}, map[state.GroupKey]bool{}
	for _, u := range p.Unplaced {
		stalled[u.Key] = true // the replacement of further instances would only stop more of them
		for _, r := range u.Ranges {
			for i := r.From; i < r.To; i++ {
				explained[fmt.Sprint(u.Key, i)] = true
			}
		}
	}
	for _, wait := range p.Waiting {
		for _, r := range wait.Ranges {
			for i := r.From; i < r.To; i++ {
				explained[fmt.Sprint(wait.Key, i)] = true
			}
		}
	}
	for g := range w.st.Groups() {
		for inst := range w.st.Instances(g.Key) {
			stalled[g.Key] = stalled[g.Key] || inst.Exhausted
		}
		live := map[int32]int{}
		for a := range w.st.GroupAllocs(g.Key) {
			if !a.Live() || a.Disconnected {
				continue
			}
			live[a.Index]++
			s := state.SlotOf(g.Slots, a.Index)
			if system := w.jobs[g.Key.Job].Type == state.System; system && len(g.Slots) > 0 {
				s = g.Slots[0]
				if i := slices.IndexFunc(g.Slots, func(s *state.Slot) bool { return s.Desired == state.Run }); i >= 0 {
					s = g.Slots[i] // if several slots have the index, any slot that wants it
				}
			}
			n, _ := w.st.Node(a.NodeID)
			if s == nil || s.Desired != state.Run || live[a.Index] > 1 ||
				(a.JobVersion != s.JobVersion || n.Draining) && !stalled[g.Key] {
				t.Fatalf("%s[%d] lives as %+v, slots %+v", g.Key, a.Index, a, g.Slots)
			}
		}
		if w.jobs[g.Key.Job].Type == state.System {
			continue
		}
		for _, s := range g.Slots {
			for i := s.From; i < s.To; i++ {
				inst := w.st.Instance(g.Key, i)
				if s.Wants(i) && live[i] == 0 && !inst.Finished() && !explained[fmt.Sprint(g.Key, i)] {
					disconnected := false
					for a := range w.st.InstanceAllocs(g.Key, i) {
						disconnected = disconnected || a.Live()
					}
					t.Fatalf("%s[%d] does not live (disconnected: %v), %+v\n%s", g.Key, i, disconnected, inst, p)
				}
			}
		}
	}
}
