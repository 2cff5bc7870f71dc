package client

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// serviceServer has one service with instances in two regions. It lists nothing in the namespace empty.
type serviceServer struct {
	nusav1.UnimplementedServicesServer
}

func (serviceServer) List(_ context.Context, r *nusav1.ListServicesRequest) (*nusav1.ListServicesResponse, error) {
	if r.GetNamespace() == "empty" {
		return &nusav1.ListServicesResponse{}, nil
	}
	if r.GetPageToken() == "" && r.GetNamespace() == "pages" {
		return &nusav1.ListServicesResponse{Services: []*nusav1.ServiceSummary{{Namespace: "pages", Name: "api", Instances: 1, Regions: []string{"jakarta"}}}, NextPageToken: "pages/api", Age: durationpb.New(90 * time.Second)}, nil
	}
	return &nusav1.ListServicesResponse{
		Services: []*nusav1.ServiceSummary{{Namespace: "default", Name: "web", Instances: 2, Regions: []string{"jakarta", "singapore"}, Tags: []string{"blue"}}},
		Age:      durationpb.New(40 * time.Second),
	}, nil
}

func (serviceServer) Resolve(_ context.Context, r *nusav1.ResolveServiceRequest) (*nusav1.ResolveServiceResponse, error) {
	if r.GetName() != "web" {
		return nil, rpcerr.NotFound("service", r.GetName(), "service default/"+r.GetName()+" has no healthy instance: `nusa service list` shows the services")
	}
	instance := func(region, address string) []*nusav1.ServiceInstance {
		return []*nusav1.ServiceInstance{{Namespace: "default", Service: "web", Region: region, Address: address, Port: 20000, Node: "n1", Job: "shop", Group: "web", Alloc: "0123456789"}}
	}
	return &nusav1.ResolveServiceResponse{
		Namespace: "default", Name: "web", Chosen: "1 instance in this region; next jakarta 12 ms measured",
		Regions: []*nusav1.ServiceRegionInstances{
			{Region: "singapore", Instances: instance("singapore", "10.0.0.1"), Age: durationpb.New(0)},
			{Region: "jakarta", Rtt: durationpb.New(12 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_MEASURED, Instances: instance("jakarta", "fd00::1"), Age: durationpb.New(time.Minute)},
		},
	}, nil
}

func TestServiceCommands(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"service list", "SERVICE      INSTANCES  REGIONS            TAGS\ndefault/web          2  jakarta singapore  blue\nconfirmed 40s ago", 0},
		{"service list -n pages", "SERVICE      INSTANCES  REGIONS            TAGS\npages/api            1  jakarta\ndefault/web          2  jakarta singapore  blue\nconfirmed 90s ago", 0},
		{"service list -n empty", "no service has a healthy instance", 0},
		{"service list -o json", `"instances": 2`, 0},
		{"service resolve web", `
REGION         RTT  ADDRESS          NODE  JOB          ALLOC     AGE
singapore        -  10.0.0.1:20000   n1    shop/web[0]  01234567
jakarta    12.0 ms  [fd00::1]:20000  n1    shop/web[0]  01234567  60s
1 instance in this region; next jakarta 12 ms measured`[1:], 0},
		{"service resolve api", "has no healthy instance", 1},
		{"service resolve", "NAME", 1},
	} {
		out, errOut, code := f.run(t.Context(), "", append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: code %d\n%s%s\nwant\n%s", c.line, code, out, errOut, c.want)
		}
	}
}
