package probe

import (
	"context"
	"fmt"
	"strings"
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
		p, err := New(Config{Region: region, Net: w.Net(region), Seed: uint64(i), Limits: Limits{Interval: time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		p.SetPeers(peers)
		run(p.Run)
		probers = append(probers, p)
	}
	// A busy machine only ever adds, so wait until the best sample of every edge
	// is right: too fast it would stay for ever, too slow likewise.
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		off := offEdges(probers, len(regions)-1)
		if len(off) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not as published:\n%s", strings.Join(off, "\n"))
		}
	}
}

// offEdges lists what differs from the Azure table, or has too few samples.
func offEdges(probers []*Prober, each int) []string {
	var off []string
	for _, p := range probers {
		edges := p.Edges()
		if len(edges) != each {
			off = append(off, fmt.Sprintf("%d edges, want %d", len(edges), each))
		}
		for _, e := range edges {
			want, _ := wan.AzurePublished().RTT(e.From, e.To)
			tolerance := max(300*time.Microsecond, want/100)
			if e.State != topology.OK || e.Samples < 3 || e.Loss > 0 || (e.Min-want).Abs() > tolerance {
				off = append(off, fmt.Sprintf("%s to %s, want %v", e.From, summary(e), want))
			}
		}
	}
	return off
}
