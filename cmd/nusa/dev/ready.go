package dev

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// awaitReady watches the regions until each of them is connected and reports all its nodes.
// Then it calls Options.Ready.
func (f *federation) awaitReady(ctx context.Context, addr global.Addresses) error {
	// The roles of operators do not hold for the global server, which always may watch.
	own, err := f.ids.watcher("global-1")
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(addr.GRPC, own.Dial(identity.GlobalServers()))
	if err != nil {
		return fmt.Errorf("reach the global server at %s: %w", addr.GRPC, err)
	}
	defer conn.Close()
	// During an election the server returns UNAVAILABLE.
	for {
		err = f.watchRegions(ctx, nusav1.NewRegionsClient(conn))
		if ctx.Err() != nil {
			return nil
		}
		if status.Code(err) != codes.Unavailable {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err != nil {
		return fmt.Errorf("watch the regions: %w", err)
	}
	f.stopWaiting()
	if f.Ready != nil {
		fed := Federation{
			Cut: f.cut, Heal: f.heal,
			Addr: addr.GRPC, HTTP: addr.HTTP, DataDir: f.DataDir, Identity: f.ids.operator(), WAN: f.WAN,
			Servers: len(f.Options.Regions) * f.Servers, Agents: len(f.Options.Regions) * f.Agents,
			Regions: map[string]string{}, Names: f.Options.Regions, TokenFile: f.token(ctx, addr.GRPC), Started: time.Since(f.begin),
		}
		for i, r := range f.Regions {
			fed.Regions[r] = f.addr(i+1, 0, portGRPC)
		}
		f.Ready(fed)
	}
	return nil
}

func (f *federation) watchRegions(ctx context.Context, client nusav1.RegionsClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Watch(ctx, &nusav1.ListRegionsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		connected := r.GetState() == nusav1.RegionState_REGION_STATE_CONNECTED
		if f.waiting.region(r.GetDefinition().GetName(), connected, int(r.GetReport().GetNodesReady())) {
			return nil
		}
	}
}
