package probe

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/sim/simnet"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// Five regions run on loopback, with the round trips of the Azure table. The probes
// measure the published values.
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
		r, err := Listen(ctx, ResponderConfig{Net: w.Net(region), Region: region, Addr: "127.0.0.1:0"})
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
	// A busy machine only adds delay, so wait until the best sample of every
	// edge is right. A sample that is too fast, or a path that is too slow,
	// fails the test.
	deadline := time.After(2 * time.Minute)
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

// offEdges lists edges that differ from the Azure table, or have too few
// samples.
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

// onWAN runs, in virtual time, regions with the round trips of a table. Every region has a
// responder, and a prober of all other regions.
type onWAN struct {
	*stage
	wan     *wan.WAN
	probers map[string]*Prober
}

func playOnWAN(t *testing.T, table *topology.Table, limits Limits, play func(w *onWAN)) {
	t.Helper()
	onStage(t, func(s *stage) {
		// There is one host. A port identifies a region.
		w := &onWAN{stage: s, wan: wan.New(wan.Config{Table: table, Inner: simnet.New(simnet.Options{}).Net("10.9.0.1"), Seed: 1}), probers: map[string]*Prober{}}
		defer func() {
			s.stop()
			s.wg.Wait()
			w.wan.Close()
		}()
		var peers []Peer
		lastSeen := map[string]func(string) (time.Duration, bool){}
		for _, name := range table.Regions() {
			r, err := Listen(s.ctx, ResponderConfig{Net: w.wan.Net(name), Region: name, Addr: "10.9.0.1:0", PerSource: 1000})
			if err != nil {
				t.Fatal(err)
			}
			s.run("responder of "+name, r.Run)
			lastSeen[name] = r.LastSeen
			peers = append(peers, Peer{Name: name, Addresses: []string{r.Addr()}})
		}
		for i, name := range table.Regions() {
			p, err := New(Config{Region: name, Net: w.wan.Net(name), Bind: "10.9.0.1:0", Seed: uint64(i), Limits: limits, LastSeen: lastSeen[name]})
			if err != nil {
				t.Fatal(err)
			}
			s.run("prober of "+name, p.Run)
			p.SetPeers(slices.DeleteFunc(slices.Clone(peers), func(to Peer) bool { _, ok := table.RTT(name, to.Name); return !ok }))
			w.probers[name] = p
		}
		play(w)
	})
}

func (w *onWAN) edge(from, to string) topology.Edge {
	w.t.Helper()
	for _, e := range w.probers[from].Edges() {
		if e.To == to {
			return e
		}
	}
	w.t.Fatalf("no edge from %s to %s", from, to)
	return topology.Edge{}
}

func threeRegions(t *testing.T) *topology.Table {
	t.Helper()
	return tableOf(t, map[[2]string]string{
		{"a", "b"}: "40", {"b", "a"}: "60", {"a", "c"}: "10", {"c", "a"}: "10", {"b", "c"}: "25", {"c", "b"}: "25"})
}

// A path that is cut in one direction is unreachable in both, since nothing can
// be measured. One end still receives the other's probes, which shows the
// direction.
func TestOneWayCutIsDistinguished(t *testing.T) {
	playOnWAN(t, threeRegions(t), Limits{}, func(w *onWAN) {
		wait(5 * time.Second)
		w.wan.CutOneWay("a", "b")
		wait(2 * time.Minute)
		ab, ba := w.edge("a", "b"), w.edge("b", "a")
		if ab.State != topology.Unreachable || !ab.ReverseReachable || ba.State != topology.Unreachable || ba.ReverseReachable {
			t.Errorf("a to b cut: a to b is %v, reverse %v, b to a is %v, reverse %v; want only a to receive probes", ab.State, ab.ReverseReachable, ba.State, ba.ReverseReachable)
		}
		w.wan.Heal("a", "b")
		wait(time.Minute)
		w.wan.Cut("a", "b")
		wait(3 * time.Minute)
		ab, ba = w.edge("a", "b"), w.edge("b", "a")
		if ab.State != topology.Unreachable || ab.ReverseReachable || ba.State != topology.Unreachable || ba.ReverseReachable {
			t.Errorf("cut both ways: a to b is %v, reverse %v, b to a is %v, reverse %v", ab.State, ab.ReverseReachable, ba.State, ba.ReverseReachable)
		}
		if ac := w.edge("a", "c"); ac.State != topology.OK || ac.ReverseReachable {
			t.Errorf("a to c: %s", summary(ac))
		}
		w.wan.Heal("a", "b")
		wait(time.Minute)
		ab, ba = w.edge("a", "b"), w.edge("b", "a")
		if ab.State != topology.OK || ba.State != topology.OK || ab.P50 != 40*msec || ba.P50 != 60*msec {
			t.Errorf("healed: %s, %s", summary(ab), summary(ba))
		}
	})
}

// Loss is reported for each direction, equally from both ends.
func TestLossIsReportedPerDirection(t *testing.T) {
	playOnWAN(t, threeRegions(t), Limits{Interval: time.Second}, func(w *onWAN) {
		w.wan.SetLoss("a", "b", 0.2)
		w.wan.SetLoss("b", "a", 0.02)
		var out, back, loss float64
		const rounds = 40 // windows
		for range rounds {
			wait(WindowSize * time.Second)
			ab, ba := w.edge("a", "b"), w.edge("b", "a")
			out, back, loss = out+ab.LossOut+ba.LossBack, back+ab.LossBack+ba.LossOut, loss+ab.Loss+ba.Loss
			checkEdge(t, ab)
			checkEdge(t, ba)
		}
		out, back, loss = out/rounds/2, back/rounds/2, loss/rounds/2
		t.Logf("lost from a to b %.3f, from b to a %.3f, of all %.3f", out, back, loss)
		if math.Abs(out-0.2) > 0.02 || math.Abs(back-0.02) > 0.01 || loss-out-back > 0.01 {
			t.Errorf("lost from a to b %.3f, from b to a %.3f, of all %.3f; want 0.2, 0.02 and their sum", out, back, loss)
		}
	})
}

// In virtual time the medians are those of the table to the nanosecond, even
// with loss. IBM's table is an optional second one, see ibmTables.
func TestMediansAreThoseOfTheTable(t *testing.T) {
	tables := map[string]*topology.Table{"azure": wan.AzurePublished()}
	if ibm := ibmTables(t); len(ibm) > 0 {
		tables["ibm"] = ibm[len(ibm)-1]
	}
	for name, table := range tables {
		t.Run(name, func(t *testing.T) {
			playOnWAN(t, table, Limits{}, func(w *onWAN) {
				for _, e := range table.Edges() {
					w.wan.SetLoss(e.From, e.To, 0.025) // 5 % of the round trips
				}
				wait(5 * time.Minute)
				for _, e := range table.Edges() {
					if got := w.edge(e.From, e.To); got.P50 != e.P50 || got.Method == UDP && got.State != topology.OK {
						t.Errorf("%s to %s: %s, want %v", e.From, e.To, summary(got), e.P50)
					}
				}
			})
		})
	}
}

// Changes by a fifth and more between two slices of time are shown well within a
// window of ten minutes.
func TestChangesAreShownWithinAWindow(t *testing.T) {
	checkChangesAreShown(t, planetLabTables(t))
}

// IBM's weekly tables are an optional larger check. They may not be copied here:
// set NUSA_DATA to a folder with ibm-rtt/inter_region_to_2024.csv to run it.
func TestIBMsChangesAreShownWithinAWindow(t *testing.T) {
	tables := ibmTables(t)
	if len(tables) == 0 {
		t.Skip("set NUSA_DATA to a folder with ibm-rtt/inter_region_to_2024.csv to run this test")
	}
	checkChangesAreShown(t, tables)
}

// planetLabTables returns the slices of testdata/planetlab_10.txt, in order.
func planetLabTables(t *testing.T) []*topology.Table {
	t.Helper()
	text, err := os.ReadFile("testdata/planetlab_10.txt")
	if err != nil {
		t.Fatal(err)
	}
	var tables []*topology.Table
	for _, slice := range strings.Split(string(text), "\n\n")[1:] {
		cells, err := topology.ParsePlain(strings.NewReader(slice))
		if err != nil {
			t.Fatal(err)
		}
		ms := map[[2]string]string{}
		for _, c := range cells.Cells {
			if c.From != c.To {
				ms[[2]string{"host-" + cells.Regions[c.From], "host-" + cells.Regions[c.To]}] = fmt.Sprint(c.RTT)
			}
		}
		tables = append(tables, tableOf(t, ms))
	}
	return tables
}

func checkChangesAreShown(t *testing.T, tables []*topology.Table) {
	t.Helper()
	changed := 0
	for next := 1; next < len(tables); next++ {
		was, is := tables[next-1], tables[next]
		var edges []topology.Edge
		for _, e := range is.Edges() {
			if before, ok := was.RTT(e.From, e.To); ok && e.From != e.To && (e.P50-before).Abs()*5 >= before {
				edges = append(edges, e)
			}
		}
		if len(edges) == 0 {
			continue
		}
		changed += len(edges)
		playOnWAN(t, was, Limits{}, func(w *onWAN) {
			wait(15 * time.Minute)
			for _, e := range edges {
				w.wan.SetRTT(e.From, e.To, e.P50)
			}
			wait(WindowAge / 2)
			for _, e := range edges {
				if got := w.edge(e.From, e.To); got.P50 != e.P50 {
					t.Errorf("table %d, %s to %s: %s, want %v", next, e.From, e.To, summary(got), e.P50)
				}
			}
		})
	}
	if t.Logf("%d changes", changed); changed == 0 {
		t.Error("no change was found: are the tables read?")
	}
}
