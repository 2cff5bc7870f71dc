package tiers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ends waits until the streams of a member at some ports have ended.
func (f *federation) ends(t *testing.T, member string, ports []int, do func(ctx context.Context) error) {
	t.Helper()
	ended := make(chan error, len(ports))
	for _, port := range ports {
		stream := f.health(t, member, port)
		go func() { // ends with the connection
			_, err := stream.Recv()
			ended <- err
		}()
	}
	f.eventually("a ban of "+member, do)
	late := time.After(banBound)
	for range ports {
		select {
		case err := <-ended:
			if status.Code(err) != codes.Unavailable {
				t.Errorf("a connection of %s ended with %v", member, err)
			}
		case <-late:
			t.Fatalf("%s is still connected after %s", member, banBound)
		}
	}
	for _, port := range ports {
		if err := f.reach(t, member, port); err == nil || status.Code(err) == codes.DeadlineExceeded {
			t.Errorf("port %d accepts %s: %v", port, member, err)
		}
	}
}

// regionBans: operators ban a region at the global tier, and one server at both tiers. All global
// servers end the connections of the region, and no others. The region goes on as an island.
func (f *federation) regionBans(t *testing.T) {
	for _, c := range []struct {
		member string
		port   int
	}{{"region/a/agent/n1", portA}, {"region/a/server/s1", portGlobal}, {"region/b/server/s1", portGlobal}, {"region/b/server/s1", portA}} {
		if _, err := nusav1.NewMembersClient(f.as(c.member, c.port)).BanRegion(t.Context(), &nusav1.BanRegionRequest{Region: "b"}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s bans a region: %v", c.member, err)
		}
	}
	jane := nusav1.NewMembersClient(f.as("operator/jane", portStandby))
	if _, err := jane.BanRegion(t.Context(), &nusav1.BanRegionRequest{Region: "nowhere"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown region is banned: %v", err)
	}
	globals := []int{portGlobal, portStandby}
	other := f.health(t, "region/a/server/s9", portGlobal)
	f.ends(t, "region/b/server/s1", globals, func(ctx context.Context) error {
		_, err := jane.BanRegion(ctx, &nusav1.BanRegionRequest{Region: "b", Reason: "stolen"})
		return err
	})
	if other.Context().Err() != nil {
		t.Error("the connection of another region has ended")
	}
	nodes, err := nusav1.NewNodesClient(f.as("operator/jane", portB)).List(t.Context(), &nusav1.ListNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 1 || nodes.GetNodes()[0].GetState() != nusav1.NodeState_NODE_STATE_READY {
		t.Errorf("the island has %v, %v", nodes, err)
	}
	connected := func(want bool) {
		t.Helper()
		f.eventually(fmt.Sprintf("region b connected: %v", want), func(ctx context.Context) error {
			r, err := nusav1.NewRegionsClient(f.as("operator/jane", portStandby)).Get(ctx, &nusav1.GetRegionRequest{Name: "b"})
			if err == nil && (r.GetState() == nusav1.RegionState_REGION_STATE_CONNECTED) != want {
				err = fmt.Errorf("region b is %s", r.GetState())
			}
			return err
		})
	}
	connected(false)
	out, err := jane.UnbanRegion(t.Context(), &nusav1.UnbanRegionRequest{Region: "b"})
	if err != nil || !out.GetRemoved() {
		t.Errorf("%v, %v", out, err)
	}
	connected(true)

	// One server: the global servers and those of its region refuse it.
	f.ends(t, "region/a/server/s9", []int{portGlobal, portStandby, portA, portA + 10, portA + 20}, func(ctx context.Context) error {
		resp, err := jane.BanRegion(ctx, &nusav1.BanRegionRequest{Region: "a", Name: "s9"})
		if err == nil && resp.GetRegionError() != "" {
			t.Errorf("the region does not know of the ban: %s", resp.GetRegionError())
		}
		return err
	})
	if _, err := nusav1.NewMembersClient(f.as("operator/jane", portA)).BanRegion(t.Context(), &nusav1.BanRegionRequest{Region: "a"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a region bans itself: %v", err)
	}
	list, err := jane.List(t.Context(), &nusav1.ListMembersRequest{Region: "a"})
	if err != nil || len(list.GetErrors()) > 0 || len(list.GetBans()) != 3 { // the server at both tiers, and the agent of bans
		t.Errorf("%v, %v", list, err)
	}
	if out, err := jane.UnbanRegion(t.Context(), &nusav1.UnbanRegionRequest{Region: "a", Name: "s9"}); err != nil || !out.GetRemoved() {
		t.Errorf("%v, %v", out, err)
	}
	for _, port := range []int{portGlobal, portStandby, portA, portA + 10, portA + 20} {
		f.eventually(fmt.Sprintf("port %d accepts the server again", port), func(context.Context) error { return f.reach(t, "region/a/server/s9", port) })
	}
	if _, err := jane.RemoveServer(t.Context(), &nusav1.RemoveServerRequest{Region: "a", Name: "s1"}); status.Code(err) != codes.NotFound {
		t.Errorf("a server that never joined is removed: %v", err)
	}
}
