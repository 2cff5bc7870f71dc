package client

import (
	"testing"

	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// overviewServer sends a snapshot in two parts, and then nothing.
type overviewServer struct {
	nusav1.UnimplementedOverviewServer
}

func (overviewServer) Watch(_ *nusav1.WatchOverviewRequest, s grpc.ServerStreamingServer[nusav1.OverviewUpdate]) error {
	region := func(name string) *nusav1.OverviewRegion {
		return &nusav1.OverviewRegion{Name: name, State: nusav1.RegionState_REGION_STATE_CONNECTED, NodesReady: 2, Master: name + "-1"}
	}
	for _, u := range []*nusav1.OverviewUpdate{
		{Reset_: true, Head: &nusav1.OverviewHead{Info: &nusav1.InfoResponse{Role: "global", Name: "g1", Leader: true}}, Regions: []*nusav1.OverviewRegion{region("eastus")}},
		{Synced: true, Regions: []*nusav1.OverviewRegion{region("jakarta")}, JobCounts: &nusav1.OverviewJobCounts{Total: 1, States: map[string]int32{"JOB_STATE_RUNNING": 1}}},
	} {
		if err := s.Send(u); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// TestPageAddress: the host of the page is that of the called server, unless the server names one.
func TestPageAddress(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		info *nusav1.InfoResponse
		want string
		code int
	}{
		{&nusav1.InfoResponse{HttpAddress: ":7601"}, "http://127.0.0.1:7601/ui/\n", 0},
		{&nusav1.InfoResponse{HttpAddress: "[::]:7601", HttpTls: true}, "https://127.0.0.1:7601/ui/\n", 0},
		{&nusav1.InfoResponse{HttpAddress: "[fd00::1]:7601"}, "http://[fd00::1]:7601/ui/\n", 0},
		{&nusav1.InfoResponse{HttpAddress: "g1.example.com:443", HttpTls: true}, "https://g1.example.com:443/ui/\n", 0},
		{&nusav1.InfoResponse{HttpAddress: "nonsense"}, "", 1},
		{&nusav1.InfoResponse{}, "", 1},
	} {
		f.info = c.info
		if out, errOut, code := f.run(t.Context(), "", "ui", "--no-browser", "--addr", f.addr); out != c.want || code != c.code {
			t.Errorf("%v: %q, %q, exit code %d", c.info, out, errOut, code)
		}
	}
}
