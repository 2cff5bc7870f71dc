package tiers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const banned = "region/a/agent/n3"

// bans: operators ban an agent, and nobody else does. All servers of the region end the agent's
// connections, and accept no others.
func (f *federation) bans(t *testing.T) {
	ban := &nusav1.BanRequest{Role: "agent", Region: "a", Name: "n3", Reason: "stolen"}
	for _, c := range []struct {
		member string
		port   int
	}{{"region/a/server/s9", portA}, {"region/a/agent/n1", portA}, {"region/a/server/s1", portGlobal}, {"region/b/server/s1", portGlobal}} {
		if _, err := nusav1.NewMembersClient(f.as(c.member, c.port)).Ban(t.Context(), ban); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s bans an agent: %v", c.member, err)
		}
	}
	ended := make(chan error, 3)
	for s := range 3 {
		stream := f.health(t, banned, portA+10*s)
		go func() { // ends with the connection
			_, err := stream.Recv()
			ended <- err
		}()
	}
	other := f.health(t, "region/a/agent/n4", portA)
	f.eventually("a ban", func(ctx context.Context) error {
		_, err := nusav1.NewMembersClient(f.as("operator/jane", portStandby)).Ban(ctx, ban)
		return err
	})
	late := time.After(banBound)
	for range 3 {
		select {
		case err := <-ended:
			if status.Code(err) != codes.Unavailable {
				t.Errorf("a connection of a banned agent ended with %v", err)
			}
		case <-late:
			t.Fatalf("a banned agent is still connected after %s", banBound)
		}
	}
	if err := other.CloseSend(); err != nil || other.Context().Err() != nil {
		t.Errorf("the connection of another agent: %v, %v", err, other.Context().Err())
	}
	for s := range 3 {
		if err := f.reach(t, banned, portA+10*s); err == nil || strings.Contains(err.Error(), "deadline") {
			t.Errorf("server %d accepts a banned agent: %v", s+1, err)
		}
	}
}

// bansOfRegions: without the global tier, a ban holds, and operators end it at the region.
func (f *federation) bansOfRegions(t *testing.T) {
	jane := nusav1.NewMembersClient(f.as("operator/jane", portA))
	list, err := jane.List(t.Context(), &nusav1.ListMembersRequest{Region: "a"})
	if err != nil || len(list.GetBans()) != 1 || list.GetBans()[0].GetBy() != f.ca.ID("operator/jane").String() {
		t.Errorf("%v, %v", list, err)
	}
	if err := f.reach(t, banned, portA+10); err == nil {
		t.Error("the ban ended with the global tier")
	}
	if _, err := jane.Unban(t.Context(), &nusav1.UnbanRequest{Role: "agent", Region: "a", Name: "n3"}); err != nil {
		t.Fatal(err)
	}
	for s := range 3 {
		f.eventually(fmt.Sprintf("server %d accepts the agent again", s+1), func(context.Context) error { return f.reach(t, banned, portA+10*s) })
	}
	trail, err := nusav1.NewAuditClient(f.as("operator/jane", portA)).List(t.Context(), &nusav1.ListAuditRequest{Verb: "ban", Kind: "node"})
	var said []string
	for _, e := range trail.GetEntries() {
		if e.GetOutcome() == "done" {
			said = append(said, e.GetName()+" "+e.GetReason()+" by "+e.GetWho())
		}
	}
	if got := strings.Join(said, ", "); err != nil || !strings.HasPrefix(got, "n3 off by operator/jane, n3 stolen by ") {
		t.Errorf("the trail has %q, %v", got, err)
	}
}

// health opens a stream as a member, and returns once the server has answered.
func (f *federation) health(t *testing.T, member string, port int) grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse] {
	t.Helper()
	stream, err := grpc_health_v1.NewHealthClient(f.as(member, port)).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// reach returns whether a server accepts a new connection of a member.
func (f *federation) reach(t *testing.T, member string, port int) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn := f.as(member, port)
	defer conn.Close()
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}
