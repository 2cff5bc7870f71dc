package regional_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/overview/model"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestOverviewOfARegion: a region's server shows the own region, its nodes and its jobs, also without
// a global tier.
func TestOverviewOfARegion(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		w.submit(1, spec("shop", 2))
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
		defer cancel()
		client := nusav1.NewOverviewClient(w.conn(1))
		stream, err := client.Watch(ctx, &nusav1.WatchOverviewRequest{Edges: true, NodesOf: regionName, Jobs: &nusav1.OverviewJobFilter{}})
		if err != nil {
			t.Fatal(err)
		}
		m, messages := model.Model{}, 0
		until := func(what string, ok func() bool) {
			t.Helper()
			for !m.Synced || !ok() {
				u, err := stream.Recv()
				if err != nil {
					t.Fatalf("not seen: %s: %v; jobs %v, nodes %v, regions %v", what, err, m.Jobs(), m.Nodes(), m.Regions())
				}
				messages++
				m.Apply(u)
			}
		}
		own := func() *nusav1.OverviewRegion { return m.Region(regionName) }
		until("the region and its job", func() bool {
			return own().GetIsland() && len(m.Jobs()) == 1 && m.Jobs()[0].GetUnplaced()+m.Jobs()[0].GetCounts().GetPending() >= 2 && m.Head.GetInfo().GetLeader()
		})
		a := w.agent("a", runs)
		until("the node and the instances", func() bool {
			nodes := m.Nodes()
			return len(nodes) == 1 && nodes[0].GetAllocations() == 2 && nodes[0].GetState() == nusav1.NodeState_NODE_STATE_READY &&
				m.Counts.GetStates()["JOB_STATE_RUNNING"] == 1 && own().GetNodesReady() == 1
		})
		if j := m.Jobs()[0]; j.GetJob().GetRegion() != regionName || j.GetCounts().GetRunning() != 2 {
			t.Errorf("job %v", j)
		}
		before := messages
		idle, stop := context.WithTimeout(context.Background(), 10*time.Minute)
		defer stop()
		<-idle.Done()
		w.submit(1, spec("later", 1))
		until("another job", func() bool { return len(m.Jobs()) == 2 })
		if n := messages - before; n > 10 {
			t.Errorf("%d messages in 10 minutes in which nothing happened", n)
		}
		a.stop()
		until("the lost node", func() bool {
			return len(m.Nodes()) == 1 && m.Nodes()[0].GetState() == nusav1.NodeState_NODE_STATE_LOST && own().GetNodesLost() == 1
		})
		other, err := client.Watch(ctx, &nusav1.WatchOverviewRequest{NodesOf: "beta"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("nodes of another region: %v", err)
		}
	})
}
