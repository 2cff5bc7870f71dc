package sim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// TestMonitor: an operator follows the logs of a server, of a master and of an agent, through any server of
// the tiers above. The levels are not those of the processes.
func TestMonitor(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Globals: 2, Servers: 3, Agents: 1}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		standby := 3 - f.Active()
		follower := f.Master("alpha")%3 + 1
		self := func(c *grpc.ClientConn) (grpc.ServerStreamingClient[nusav1.LogRecord], error) {
			return nusav1.NewMonitorClient(c).Self(ctx, &nusav1.MonitorRequest{Level: "debug"})
		}
		member := func(c *grpc.ClientConn, region, node string) (grpc.ServerStreamingClient[nusav1.LogRecord], error) {
			return nusav1.NewMonitorClient(c).Member(ctx, &nusav1.MonitorMemberRequest{Region: region, Node: node, Level: "debug"})
		}
		agent := f.Process("alpha-agent-1").Node
		for _, c := range []struct {
			name, want string
			open       func() (grpc.ServerStreamingClient[nusav1.LogRecord], error)
		}{
			{"the active global server", "job submitted", func() (grpc.ServerStreamingClient[nusav1.LogRecord], error) { return self(f.Global(f.Active())) }},
			{"the agent through a standby", "action", func() (grpc.ServerStreamingClient[nusav1.LogRecord], error) {
				return member(f.Global(standby), "alpha", agent[:12])
			}},
			{"the agent through a follower", "action", func() (grpc.ServerStreamingClient[nusav1.LogRecord], error) {
				return member(f.Server("alpha", follower), "", agent)
			}},
		} {
			stream, err := c.open()
			if err == nil {
				_, err = stream.Header()
			}
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			f.Submit(service("web-"+strings.ReplaceAll(strings.Fields(c.name)[1]+c.name[len(c.name)-3:], " ", ""), 1, ""))
			for seen := ""; !strings.Contains(seen, c.want); {
				r, err := stream.Recv()
				if err != nil {
					t.Fatalf("%s: %v after %s", c.name, err, seen)
				}
				seen += r.GetMessage() + "\n"
			}
		}
		for _, c := range []struct {
			region, node string
			want         codes.Code
		}{{"alpha", "nobody", codes.NotFound}, {"gamma", "", codes.InvalidArgument}, {"", "", codes.InvalidArgument}} {
			stream, err := member(f.Global(standby), c.region, c.node)
			if err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != c.want {
				t.Errorf("region %q, node %q: %v, want %v", c.region, c.node, err, c.want)
			}
		}
	})
}
