package find

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// object is a run of a workflow, a job, a region, a node or an allocation.
type object struct {
	kind string
	// name is shown, and arg names the object in the command `nusa KIND status ARG`. also are further names.
	name, arg string
	also      []string
	state     string
}

// objects returns the objects of the lists of a server.
func objects(runs []*nusav1.WorkflowRun, jobs []*nusav1.Job, regions []*nusav1.Region, nodes []*nusav1.Node, allocs []*nusav1.Allocation) (out []object) {
	for _, r := range runs {
		name := cli.JobName(r.GetNamespace(), r.GetName(), "")
		out = append(out, object{kind: "workflow", name: name, arg: name, also: []string{r.GetName()}, state: term.Word(r.GetState())})
	}
	for _, j := range jobs {
		name := cli.JobName(j.GetSpec().GetNamespace(), j.GetSpec().GetName(), j.GetRegion())
		out = append(out, object{kind: "job", name: name, arg: name, also: []string{j.GetSpec().GetName()}, state: term.Word(j.GetStatus().GetState())})
	}
	for _, r := range regions {
		name := r.GetDefinition().GetName()
		out = append(out, object{kind: "region", name: name, arg: name, state: term.Word(r.GetState())})
	}
	for _, n := range nodes {
		out = append(out, object{kind: "node", name: n.GetRegion() + "/" + n.GetName(), arg: n.GetId(), also: []string{n.GetName(), n.GetId()}, state: term.Word(n.GetState())})
	}
	for _, a := range allocs {
		instance := a.GetJob() + "/" + a.GetGroup() + "/" + term.Count(a.GetIndex())
		out = append(out, object{kind: "alloc", name: term.ShortID(a.GetId()) + " " + instance, arg: a.GetId(), also: []string{a.GetId(), instance}, state: term.Word(a.GetState())})
	}
	return out
}

// match returns the objects with a name, or else those whose name begins with it. The order is by kind,
// then by name.
func match(all []object, text string) []object {
	var exact, begins []object
	for _, o := range all {
		names := append([]string{o.name}, o.also...)
		switch {
		case slices.Contains(names, text):
			exact = append(exact, o)
		case slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, text) }):
			begins = append(begins, o)
		}
	}
	if len(exact) > 0 {
		begins = exact
	}
	slices.SortStableFunc(begins, func(a, b object) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)), strings.Compare(a.name, b.name))
	})
	return begins
}

// kinds is the order of the kinds of objects. A run comes before the jobs of its steps, whose names begin with its name.
var kinds = []string{"workflow", "job", "region", "node", "alloc"}
