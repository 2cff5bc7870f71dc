package repair

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/drift"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/nodes"
)

const (
	// asking bounds the agents that are asked at the same time, and askTimeout one call. An agent
	// that compares first may take until compareTimeout.
	asking         = 8
	askTimeout     = 5 * time.Second
	compareTimeout = 25 * time.Second
	// maxText bounds each text of a repair that an agent reports, in bytes.
	maxText = 300
)

// look is what one look at a node found.
type look struct {
	outbox, agent []drift.Difference
	compared      int
	repairs       []*nusav1.Repair
}

// instances are the kinds of repairs that agents report.
var instances = []string{"instance_unknown", "instance_extra", "instance_gone"}

// agents compares the orders of agents with the log. Nodes with differences are looked at twice.
// First the agents compare their records with what their drivers run.
func (r *Repairer) agents(ctx context.Context, ids []string, own, below *result) {
	var asks errgroup.Group
	asks.SetLimit(asking)
	for _, id := range ids {
		asks.Go(func() error {
			if err := r.agent(ctx, id, own, below); err != nil && ctx.Err() == nil {
				below.skipped(fmt.Sprintf("node %s: %s", r.name(id), status.Convert(err).Message()))
			}
			return nil
		})
	}
	_ = asks.Wait() // the functions return no error
}

func (r *Repairer) agent(ctx context.Context, id string, own, below *result) error {
	session := r.Agents.Attached()[id]
	first, err := r.look(ctx, id, true)
	if err != nil {
		return err
	}
	below.compared(first.compared)
	own.compared(first.compared)
	r.reported(id, first.repairs, below)
	if len(first.outbox)+len(first.agent) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(lookAgain):
	}
	second, err := r.look(ctx, id, false)
	if err != nil {
		return err
	}
	r.reported(id, second.repairs, below)
	if latest := r.Agents.Attached()[id]; latest != session || latest == nil {
		return nil // a new session sends everything that the agent lacks
	}
	r.repair(id, drift.Lasting(first.outbox, second.outbox), drift.Lasting(first.agent, second.agent), own, below)
	return nil
}

// reported counts what an agent has repaired by itself. An agent may send anything, so the texts are
// bounded, and unknown kinds count together.
func (r *Repairer) reported(id string, repairs []*nusav1.Repair, below *result) {
	for _, x := range repairs[:min(len(repairs), maxRepairs)] {
		kind := x.GetKind()
		if !slices.Contains(instances, kind) {
			kind = "instance_other"
		}
		below.repaired(kind, r.name(id)+"/"+clip(x.GetObject()), clip(x.GetWhy()), clip(x.GetRepair()))
	}
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "") }

// look compares the outbox of a node and the orders of its agent with the log. With compare, the agent
// compares first.
func (r *Repairer) look(ctx context.Context, id string, compare bool) (out look, err error) {
	limit := askTimeout
	if compare {
		limit = compareTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	held, err := r.Ask(ctx, id, compare)
	old := status.Code(err) == codes.Unimplemented // an agent of an earlier version
	if err != nil && !old {
		return out, err
	}
	want := nodes.Wanted(r.View(), id)
	out.compared = len(want)
	if sent, complete := r.Agents.Outbox(id); complete {
		out.outbox = drift.Compare(want, sent)
	}
	if old {
		return out, nil
	}
	have := make(map[string]uint64, len(held.GetOrders()))
	for _, o := range held.GetOrders() {
		have[o.GetId()] = o.GetIndex()
	}
	out.agent, out.repairs = drift.Compare(want, have), held.GetRepairs()
	return out, nil
}

// repair repairs the differences of a node.
func (r *Repairer) repair(id string, outbox, agent []drift.Difference, own, below *result) {
	name := r.name(id)
	if len(outbox) > 0 {
		r.Agents.Refill(id)
		for _, d := range outbox {
			own.repaired("outbox_"+string(d.Kind), name+"/"+d.Key, d.String(), "the node's orders were made from the log again")
		}
	}
	var orders, removals []string
	for _, d := range agent {
		switch d.Kind {
		case drift.Stray:
			removals = append(removals, d.Key)
			below.repaired("agent_stray", name+"/"+d.Key, d.String(), "the agent was ordered to stop and forget the allocation")
		case drift.Newer: // only another log can explain that, and a session would refuse such an agent
			r.Log.Error("an agent has an order that the log does not have", "node", name, "allocation", d.Key, "why", d.String())
		default:
			orders = append(orders, d.Key)
			below.repaired("agent_"+string(d.Kind), name+"/"+d.Key, d.String(), "the order was sent again")
		}
	}
	if len(orders)+len(removals) > 0 {
		r.Agents.Repeat(id, orders, removals)
	}
}

// name returns the name of a node.
func (r *Repairer) name(id string) string {
	if n, ok := r.View().Node(id); ok {
		return n.Name
	}
	return id
}
