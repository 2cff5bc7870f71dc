package sim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// onPools makes a call to the Pools service of the active global server.
func onPools[T any](t *testing.T, f *sim.Federation, do func(context.Context, nusav1.PoolsClient) (T, error)) (out T, err error) {
	err = f.OnGlobal(func(c *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		out, err = do(ctx, nusav1.NewPoolsClient(c))
		return err
	})
	return out, err
}

// TestPoolsAreKeptByTheirRegions: the global tier passes the calls about pools on to the region that they
// name, and lists the pools of all regions.
func TestPoolsAreKeptByTheirRegions(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha", "beta"}, Agents: 1}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		set := func(region string) (*nusav1.Pool, error) {
			return onPools(t, f, func(ctx context.Context, c nusav1.PoolsClient) (*nusav1.Pool, error) {
				return c.Set(ctx, &nusav1.SetPoolRequest{Region: region, Pool: &nusav1.Pool{Name: "default", Weights: &nusav1.PoolWeights{Memory: 30}}})
			})
		}
		for _, region := range []string{"", "nowhere"} {
			if _, err := set(region); status.Code(err) != codes.InvalidArgument {
				t.Errorf("a policy in region %q: %v", region, err)
			}
		}
		if p, err := set("beta"); err != nil || p.GetRegion() != "beta" || p.GetNodes() != 1 {
			t.Fatalf("set: %v, %v", p, err)
		}
		list := func() (out []string) {
			all, err := onPools(t, f, func(ctx context.Context, c nusav1.PoolsClient) (*nusav1.ListPoolsResponse, error) {
				return c.List(ctx, &nusav1.ListPoolsRequest{})
			})
			if err != nil || len(all.GetErrors()) > 0 {
				t.Fatalf("list: %v, %v", all, err)
			}
			for _, p := range all.GetPools() {
				out = append(out, fmt.Sprint(p.GetRegion(), "/", p.GetName(), " ", p.GetWeights().GetMemory(), " ", p.GetRevision() > 0))
			}
			return out
		}
		if got, want := fmt.Sprint(list()), "[alpha/default 0 false beta/default 30 true]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		gone, err := onPools(t, f, func(ctx context.Context, c nusav1.PoolsClient) (*nusav1.RemovePoolResponse, error) {
			return c.Remove(ctx, &nusav1.RemovePoolRequest{Region: "beta", Name: "default"})
		})
		if err != nil || !gone.GetRemoved() {
			t.Errorf("remove: %v, %v", gone, err)
		}
		if got, want := fmt.Sprint(list()), "[alpha/default 0 false beta/default 0 false]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
