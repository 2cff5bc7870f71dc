package nodes

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/expr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
)

// conditions has the compiled condition of the join policy.
var conditions = expr.NewCache(8)

// refuseInventory refuses an agent for which the condition of the region's join policy does not hold.
func refuseInventory(cfg *Config, h *nusav1.AgentHello) *nusav1.Refused {
	doc, ok := cfg.FSM.View().Document(enroll.PolicyKey)
	if !ok {
		return nil
	}
	policy := &nusav1.JoinPolicy{}
	if err := proto.Unmarshal(doc.Value, policy); err != nil {
		return &nusav1.Refused{Message: fmt.Sprintf("the join policy of region %s cannot be read: %v", cfg.Region, err)}
	}
	source := policy.GetRequire()
	if source == "" {
		return nil
	}
	p, err := conditions.Compile(expr.Bool, source)
	if err != nil {
		return &nusav1.Refused{Message: fmt.Sprintf("the join policy of region %s requires %s, and %v: set the policy again", cfg.Region, source, err)}
	}
	node := &nusav1.Node{Id: h.GetNodeId(), Name: h.GetName(), Region: cfg.Region, Inventory: h.GetInventory()}
	holds, why := p.Bool(expr.NodeFromProto(node))
	switch {
	case why != "":
		return &nusav1.Refused{Message: fmt.Sprintf("the join policy of region %s requires %s, which has no value for node %s: %s", cfg.Region, source, h.GetName(), why)}
	case !holds:
		return &nusav1.Refused{Message: fmt.Sprintf("the join policy of region %s requires %s, which does not hold for node %s", cfg.Region, source, h.GetName())}
	}
	return nil
}

// describe adds what the registration of a node says to the inventory of its agent. The labels of the
// registration replace those of the agent.
func describe(cfg *Config, h *nusav1.AgentHello) {
	doc, ok := cfg.FSM.View().Document(enroll.NodeKey(h.GetName()))
	if !ok || h.GetInventory() == nil {
		return
	}
	n, err := enroll.ReadNode(doc.Value)
	if err != nil {
		cfg.Logger.Error("a registration cannot be read", "node", h.GetName(), "error", err)
		return
	}
	inv := h.GetInventory()
	if inv.GetDescription() == "" {
		inv.Description = n.GetDescription()
	}
	if len(n.GetLabels()) > 0 && inv.Labels == nil {
		inv.Labels = map[string]string{}
	}
	for key, value := range n.GetLabels() {
		inv.Labels[key] = value
	}
}
