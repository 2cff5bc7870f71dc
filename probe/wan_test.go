package probe

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// Five regions on this machine's loopback, behind the Azure table: what the
// probes measure is what Azure published.
func TestProbersMeasureTheAzureTable(t *testing.T) {
	regions := []string{"southeastasia", "japaneast", "westeurope", "eastus", "brazilsouth"}
	w := wan.New(wan.Config{Table: wan.AzurePublished()})
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	run := func(run func(context.Context) error) {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	var peers []Peer
	for _, region := range regions {
		r, err := Listen(ctx, ResponderConfig{Net: w.Net(region), Addr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		run(r.Run)
		peers = append(peers, Peer{Name: region, Addresses: []string{r.Addr()}})
	}
	var probers []*Prober
	for i, region := range regions {
		p, err := New(Config{Region: region, Net: w.Net(region), Seed: uint64(i)})
		if err != nil {
			t.Fatal(err)
		}
		p.SetPeers(peers)
		run(p.Run)
		probers = append(probers, p)
	}
	for _, e := range gather(t, probers, len(regions)-1) {
		want, _ := wan.AzurePublished().RTT(e.From, e.To)
		tolerance := max(300*time.Microsecond, want/100)
		if (e.Min-want).Abs() > tolerance || e.P50 < want-tolerance || e.P50 > want+tolerance+busyMachine || e.State != topology.OK {
			t.Errorf("%s to %s: %+v, published are %v", e.From, e.To, e, want)
		}
	}
}

// busyMachine is granted to medians, not to minima.
const busyMachine = 3 * time.Millisecond

// gather waits until every edge has three samples: of the first five, a busy
// machine may have set some aside.
func gather(t *testing.T, probers []*Prober, each int) []topology.Edge {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var all []topology.Edge
		complete := true
		for _, p := range probers {
			edges := p.Edges()
			complete = complete && len(edges) == each
			for _, e := range edges {
				complete = complete && e.Samples >= 3
			}
			all = append(all, edges...)
		}
		if complete {
			return all
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not all edges have three samples: %+v", all)
		}
	}
}
