package sched

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// ErrPlan is wrapped by every error that Check returns.
var ErrPlan = errors.New("plan breaks a rule")

// Check returns an error if a plan over-commits a node, runs an instance twice, places an
// instance on a node that a filter refuses, or uses a node that is reserved for another
// instance. Check applies the plan to a fork of the view and also checks each placement
// alone. It shares almost no code with Make.
func Check(in Input, p *Plan) error {
	var errs []error
	for i := range p.Places {
		if err := checkPlace(in, &p.Places[i]); err != nil {
			errs = append(errs, err)
		}
	}
	if err := checkReserved(in, p); err != nil {
		errs = append(errs, err)
	}
	n := 0
	newID := func() string { n++; return "check-" + strconv.Itoa(n) }
	fork := in.View.Fork()
	for _, c := range p.Commands(newID, len(p.Stops)+len(p.Resizes)+len(p.Places)) {
		res := fork.Apply(in.View.Index()+1, state.Command{NowUnixNano: in.NowUnixNano, ApplyPlan: &c})
		for _, s := range res.Skipped {
			errs = append(errs, fmt.Errorf("%w: %s: %s: %s", ErrPlan, s.ID, s.Reason, s.Message))
		}
	}
	return errors.Join(errs...)
}

// checkReserved returns an error if an instance is placed on a node that is reserved for an
// earlier group.
func checkReserved(in Input, p *Plan) error {
	if len(p.Reserved) == 0 {
		return nil
	}
	order := map[state.GroupKey]int{}
	for g := range in.View.Undecided() {
		order[g.Key] = len(order)
	}
	for _, k := range p.Reserved {
		for i := range p.Places {
			if pl := &p.Places[i]; pl.NodeID == k.NodeID && order[pl.Key] > order[k.Key] {
				return fmt.Errorf("%w: %s[%d] on %s, which is reserved for %s[%d]", ErrPlan, pl.Key, pl.Index, k.NodeName, k.Key, k.Index)
			}
		}
	}
	return nil
}

func checkPlace(in Input, p *Place) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s[%d] on %s: %s", ErrPlan, p.Key, p.Index, p.NodeName, fmt.Sprintf(format, args...))
	}
	n, ok := in.View.Node(p.NodeID)
	if !ok {
		return fail("no such node")
	}
	job, ok := in.View.Job(p.Key.JobKey(), p.JobVersion)
	if !ok || job.Group(p.Key.Group) == nil {
		return fail("version %d is not stored", p.JobVersion)
	}
	own := job.Group(p.Key.Group).Ask
	ask := &own
	inst := in.View.Instance(p.Key, p.Index)
	if p.Memory > 0 {
		if inst.Retry == nil || p.Memory != inst.Retry.MemoryBytes || p.Memory <= ask.Resources.MemoryBytes {
			return fail("%d bytes of memory are not those of the retry", p.Memory)
		}
		ask.Resources.MemoryBytes = p.Memory
	}
	declined, _ := in.declinedBy(&inst)
	switch {
	case p.Resources != ask.Resources:
		return fail("charged for %v, asks for %v", p.Resources, ask.Resources)
	case p.Epoch != in.View.NextEpoch(&inst):
		return fail("epoch %d after %d", p.Epoch, inst.Epoch)
	case inst.Finished():
		return fail("the instance is finished")
	case inst.NotBeforeUnixNano > in.NowUnixNano:
		return fail("the instance is backing off")
	case slices.Contains(declined, n.ID):
		return fail("the node declined it")
	case n.Pool != ask.Pool:
		return fail("pool %q, not %q", n.Pool, ask.Pool)
	}
	for _, need := range ask.Drivers {
		fits := func(have state.Driver) bool {
			return have.Name == need.Name && have.Healthy && containsAll(have.Capabilities, need.Capabilities)
		}
		if !slices.ContainsFunc(n.Drivers, fits) {
			return fail("driver %s", need.Name)
		}
	}
	for _, expr := range ask.Constraints {
		if ok, err := in.Funcs.Match(expr, n); err != nil || !ok {
			return fail("constraint %s", expr)
		}
	}
	if err := checkPorts(n, ask, p); err != nil {
		return fail("%v", err)
	}
	if err := checkGPUs(n, ask, p); err != nil {
		return fail("%v", err)
	}
	return nil
}

func containsAll(have, need []string) bool {
	for _, s := range need {
		if !slices.Contains(have, s) {
			return false
		}
	}
	return true
}

func checkPorts(n *state.Node, ask *state.Ask, p *Place) error {
	if len(p.Ports) != len(ask.Ports) {
		return fmt.Errorf("%d ports of %d", len(p.Ports), len(ask.Ports))
	}
	for i, want := range ask.Ports {
		got := p.Ports[i]
		switch {
		case got.Label != want.Label:
			return fmt.Errorf("port %q is missing", want.Label)
		case want.Static != 0 && got.Port != want.Static:
			return fmt.Errorf("port %d, not %d", got.Port, want.Static)
		case want.Static == 0 && (got.Port < n.PortMin || got.Port > n.PortMax || got.Port == 0):
			return fmt.Errorf("port %d is outside %d..%d", got.Port, n.PortMin, n.PortMax)
		}
	}
	return nil
}

// checkGPUs compares the sum of the granted devices with the ask, and checks that some ask
// accepts the model of each device.
func checkGPUs(n *state.Node, ask *state.Ask, p *Place) error {
	var want, got int32
	for _, a := range ask.GPUs {
		if a.Count <= 1 && a.ShareMilli > 0 {
			want += a.ShareMilli
		} else {
			want += 1000 * a.Count
		}
	}
	for _, g := range p.GPUs {
		got += g.ShareMilli
		at := slices.IndexFunc(n.GPUs, func(d state.GPU) bool { return d.ID == g.Device })
		if at < 0 {
			return fmt.Errorf("the node has no gpu %s", g.Device)
		}
		accepted := slices.ContainsFunc(ask.GPUs, func(a state.GPUAsk) bool {
			return len(a.Models) == 0 || slices.Contains(a.Models, n.GPUs[at].Model)
		})
		if !accepted {
			return fmt.Errorf("gpu model %s", n.GPUs[at].Model)
		}
	}
	if want != got {
		return fmt.Errorf("%d thousandths of a gpu, not %d", got, want)
	}
	return nil
}
