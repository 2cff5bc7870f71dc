package tiers_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// TestSeparateListeners: the agents of a region find the master by the listeners for agents, though
// they know the address of one server only. No listener accepts those of another.
func TestSeparateListeners(t *testing.T) {
	f := &federation{t: t, ca: pkitest.New(t), port: freeport.Reserve(t, 60), log: slog.New(slog.DiscardHandler)}
	const api, agents = 5, 6 // beside the ports of each server
	for s := range 3 {
		name, port, dir := fmt.Sprintf("s%d", s+1), portA+10*s, t.TempDir()
		f.run(name, func(ctx context.Context) error {
			return regional.Run(ctx, regional.Config{
				Region: &nusav1.RegionDefinition{Name: "a"}, Name: name, DataDir: dir,
				GRPCAddr: f.addr(port), RaftAddr: f.addr(port + 1), GossipAddr: f.addr(port + 2), ProbeAddr: f.addr(port + 3), HTTPAddr: "-",
				APIAddr: f.addr(port + api), AgentAddr: f.addr(port + agents),
				Join: []string{f.addr(portA + 2)}, BootstrapExpect: 3, Raft: regional.FastRaft(),
				Identity: f.ca.Source("region/a/server/" + name), HistoryBytes: -1, Logger: f.log,
			})
		})
	}
	f.agent("a", "n1", portA+agents)
	f.agent("a", "n2", portA+10+agents)
	operator := nusav1.NewNodesClient(f.as("operator/jane", portA+20+api))
	f.eventually("both nodes are ready", func(ctx context.Context) error {
		list, err := operator.List(ctx, &nusav1.ListNodesRequest{})
		ready := 0
		for _, n := range list.GetNodes() {
			if n.GetState() == nusav1.NodeState_NODE_STATE_READY {
				ready++
			}
		}
		if err == nil && ready < 2 {
			err = fmt.Errorf("%d nodes are ready", ready)
		}
		return err
	})
	for member, listener := range map[string]int{"operator/jane": api, "region/a/agent/n3": agents, "region/a/server/s9": 0, "region/b/server/s1": 0} {
		for _, port := range []int{0, api, agents} {
			_, err := nusav1.NewSystemClient(f.as(member, portA+port)).Info(t.Context(), &nusav1.InfoRequest{})
			if (err == nil) != (port == listener) || err != nil && status.Code(err) != codes.Unavailable {
				t.Errorf("%s at +%d: %v", member, port, err)
			}
		}
	}
}
