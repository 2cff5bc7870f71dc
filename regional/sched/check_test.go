package sched_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// checkedWorld returns a world with one node that takes the ask, and other nodes.
func checkedWorld(t *testing.T) *world {
	w := newWorld()
	for _, line := range strings.Split(`node n1 cpu=1000 mem=1024 ports=20000,20009 gpus=t4,a100 drivers=docker:exec labels=disk:ssd quota=2
node n2 cpu=400 gpus=t4 drivers=docker:exec labels=disk:ssd
node n3 pool=other gpus=t4 drivers=docker:exec labels=disk:ssd
node n4 gpus=t4 drivers=docker labels=disk:ssd
node n5 gpus=t4 drivers=docker:exec
job api web cpu=500 mem=256 ports=http:8080,rpc gpus=1@t4 drivers=docker:exec constraints=disk:ssd
order api 0-1`, "\n") {
		w.run(t, "checked", line)
	}
	return w
}

// TestCheck: Check finds every kind of mistake in a plan.
func TestCheck(t *testing.T) {
	on := func(node string) func(*sched.Plan) {
		return func(p *sched.Plan) { p.Places[0].NodeID, p.Places[0].NodeName = node, node }
	}
	for _, c := range []struct {
		name, want string
		change     func(*sched.Plan)
	}{
		{"as made", "", func(*sched.Plan) {}},
		{"unknown node", "no such node", on("n9")},
		{"no room", "insufficient_cpu", on("n2")},
		{"another pool", "pool", on("n3")},
		{"a capability less", "driver docker", on("n4")},
		{"a constraint", "constraint disk=ssd", on("n5")},
		{"unknown version", "version 7 is not stored", func(p *sched.Plan) { p.Places[0].JobVersion = 7 }},
		{"charged for less", "charged for", func(p *sched.Plan) { p.Places[0].Resources.CPUMilli = 1 }},
		{"wrong epoch", "epoch 5", func(p *sched.Plan) { p.Places[0].Epoch = 5 }},
		{"a port less", "1 ports of 2", func(p *sched.Plan) { p.Places[0].Ports = p.Places[0].Ports[:1] }},
		{"wrong label", `port "rpc"`, func(p *sched.Plan) { p.Places[0].Ports[1].Label = "x" }},
		{"not the static port", "not 8080", func(p *sched.Plan) { p.Places[0].Ports[0].Port = 8081 }},
		{"out of the range", "outside", func(p *sched.Plan) { p.Places[0].Ports[1].Port = 21000 }},
		{"no device", "0 thousandths", func(p *sched.Plan) { p.Places[0].GPUs = nil }},
		{"a device that is not there", "gpu gpu7", func(p *sched.Plan) { p.Places[0].GPUs[0].Device = "gpu7" }},
		{"another model", "gpu model a100", func(p *sched.Plan) { p.Places[0].GPUs[0].Device = "gpu1" }},
		{"an instance twice", "stale_order", func(p *sched.Plan) { p.Places = append(p.Places, p.Places[0]) }},
		{"an index that is not wanted", "stale_order", func(p *sched.Plan) { p.Places[0].Index = 3 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := checkedWorld(t)
			in := w.input()
			p := sched.Make(in)
			if len(p.Places) != 1 || p.Places[0].NodeID != "n1" {
				t.Fatalf("the plan is not the expected one:\n%s", p)
			}
			p.Places[0].Ports, p.Places[0].GPUs = slices.Clone(p.Places[0].Ports), slices.Clone(p.Places[0].GPUs)
			c.change(p)
			err := sched.Check(in, p)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, sched.ErrPlan) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestCheckInstances: Check also considers declines, failures and ends of instances.
func TestCheckInstances(t *testing.T) {
	for _, c := range []struct {
		report, want string
		wait         time.Duration
	}{
		{"declined", "the node declined it", 0},
		{"failed", "the instance is backing off", 0},
		{"failed", "", 5 * time.Second},
	} {
		w := checkedWorld(t)
		p := sched.Make(w.input())
		w.applyAll(p)
		w.run(t, c.report, "report a1 "+c.report)
		w.now += int64(c.wait)
		p.Places[0].Epoch = 2
		err := sched.Check(w.input(), p)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.report, err, c.want)
		}
	}
}

// applyAll applies a plan.
func (w *world) applyAll(p *sched.Plan) {
	for _, c := range p.Commands(w.newID, 1000) {
		w.apply(state.Command{ApplyPlan: &c})
	}
}

func TestDiff(t *testing.T) {
	w := checkedWorld(t)
	p := sched.Make(w.input())
	if d := p.Diff(sched.Make(w.input())); d != "" {
		t.Errorf("equal plans differ:\n%s", d)
	}
	other := *p
	other.Places = slices.Clone(p.Places)
	other.Places[0].NodeName = "n2"
	lines := strings.Split(strings.TrimSuffix(other.Diff(p), "\n"), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "- place default/api/web[0] v1 epoch 1 on n1") || !strings.HasPrefix(lines[1], "+ place default/api/web[0] v1 epoch 1 on n2") {
		t.Errorf("%q", lines)
	}
}
