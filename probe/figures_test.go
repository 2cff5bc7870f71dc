package probe

import (
	"bufio"
	"bytes"
	"container/heap"
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/wan"
)

// Figures that depend on the machine are measured by benchmarks. A benchmark reports its
// figures, and asserts only that probing works. The comment of each benchmark has the
// command.

// probeFor is how long the benchmarks probe.
var probeFor = flag.Duration("probe.for", 20*time.Second, "how long the benchmarks of probing measure")

// childEnv is the variable that makes the test binary a helper process: "spin" occupies a
// core, and "responders N" responds as N regions. A helper ends when its standard input
// ends.
const childEnv = "NUSA_PROBE_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		child(what)
		return
	}
	goleak.VerifyTestMain(m)
}

func child(what string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var n int
	if _, err := fmt.Sscanf(what, "responders %d", &n); err != nil {
		for ctx.Err() == nil {
			for range 1 << 20 { // a core
			}
		}
		return
	}
	var wg sync.WaitGroup
	for i := range n {
		far := network.Host()
		far.ListenPacket = func(ctx context.Context, addr string) (net.PacketConn, error) {
			c, err := network.Host().ListenPacket(ctx, addr)
			return farConn{c}, err
		}
		r, err := Listen(ctx, ResponderConfig{Net: far, Region: region(i), Addr: "127.0.0.1:0", PerSource: 1e6, Total: 1e6})
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		wg.Go(func() { _ = r.Run(ctx) })
		fmt.Println(r.Addr())
	}
	wg.Wait()
}

// farConn sends datagrams 20 to 300 ms later, as if they came from far regions.
type farConn struct{ net.PacketConn }

func (c farConn) WriteTo(b []byte, to net.Addr) (int, error) {
	b = bytes.Clone(b)
	_, port, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(port)
	time.AfterFunc(time.Duration(20+n%280)*time.Millisecond, func() { _, _ = c.PacketConn.WriteTo(b, to) })
	return len(b), err
}

func region(i int) string { return fmt.Sprintf("region-%04d", i) }

// startChild runs the test binary as a helper until the benchmark ends.
func startChild(b *testing.B, what string) io.Reader {
	b.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+what)
	in, err := c.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = c.Wait()
	})
	return out
}

// BenchmarkThousandPeers reports the share of a core that a prober of 1,000 regions takes
// on the sockets of the host, after the first quick probes. Another process responds for
// the regions.
//
//	go test ./probe -run '^$' -bench ThousandPeers -benchtime 1x -probe.for 30s
func BenchmarkThousandPeers(b *testing.B) {
	const peers = 1000
	var all []Peer
	for lines := bufio.NewScanner(startChild(b, fmt.Sprintf("responders %d", peers))); len(all) < peers && lines.Scan(); {
		all = append(all, Peer{Name: region(len(all)), Addresses: []string{lines.Text()}})
	}
	if len(all) < peers {
		b.Fatalf("%d responders, want %d", len(all), peers)
	}
	for range b.N {
		p, err := New(Config{Region: "bench", Net: network.Host()})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Run(ctx) })
		p.SetPeers(all)
		// At a hundred probes a second the five quick probes of all regions would take 50
		// s. One response of each region is enough for this benchmark.
		first := time.Now()
		for tick := time.NewTicker(100 * time.Millisecond); countOK(p.Edges()) < peers; <-tick.C {
			if time.Since(first) > 20*time.Second {
				b.Fatalf("%d of %d edges", countOK(p.Edges()), peers)
			}
		}
		filled := time.Since(first)
		// At first the whole budget is used for the quick probes of new peers.
		for _, phase := range []string{"full", "steady"} {
			if phase == "steady" {
				p.mu.Lock()
				for _, e := range p.plan.peers {
					e.quick = 0 // as after a minute
					e.next.At = time.Now().Add(time.Duration(p.rnd.Float64() * float64(e.every)))
				}
				heap.Init(&p.plan.queue)
				p.mu.Unlock()
				<-time.After(3 * time.Second)
			}
			spent, sent := spend(b, p)
			b.ReportMetric(100*spent, "%core-"+phase)
			b.ReportMetric(sent, "probes/s-"+phase)
		}
		b.ReportMetric(filled.Seconds(), "s-to-fill")
		cancel()
		wg.Wait()
	}
	b.ReportMetric(0, "ns/op")
}

// spend measures the share of a core that this process takes, and the number of probes a
// second.
func spend(b *testing.B, p *Prober) (cores, probes float64) {
	b.Helper()
	count := func() uint64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.probes
	}
	before, start, cpu := count(), time.Now(), cpuTime(b)
	<-time.After(*probeFor)
	took := time.Since(start).Seconds()
	return (cpuTime(b) - cpu).Seconds() / took, float64(count()-before) / took
}

func countOK(edges []topology.Edge) int {
	n := 0
	for _, e := range edges {
		if e.State == topology.OK {
			n++
		}
	}
	return n
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAccuracy compares the probers' measurements through the emulated WAN
// with its table, with and without loss and other work on the machine. It needs
// the machine to itself.
//
//	go test ./probe -run '^$' -bench Accuracy -benchtime 1x -probe.for 15s
func BenchmarkAccuracy(b *testing.B) {
	tables := map[string]*topology.Table{"azure": wan.AzurePublished()}
	if ibm := ibmTables(b); len(ibm) > 0 {
		tables["ibm"] = ibm[len(ibm)-1]
	}
	for _, name := range []string{"azure", "ibm"} {
		table := tables[name]
		if table == nil {
			continue
		}
		for _, busy := range []int{0, 2} {
			for _, loss := range []float64{0, 0.01, 0.05} {
				b.Run(fmt.Sprintf("%s/loss=%g/busy=%d", name, loss, busy), func(b *testing.B) {
					for range busy {
						startChild(b, "spin")
					}
					for range b.N {
						accuracy(b, table, loss)
					}
				})
			}
		}
	}
}

// accuracy lets three regions probe all others, and reports the median and the
// 99th percentile of the errors of their medians.
func accuracy(b *testing.B, table *topology.Table, loss float64) {
	const probing = 3
	regions := table.Regions()
	w := wan.New(wan.Config{Table: table, Seed: 1})
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	var peers []Peer
	for _, to := range regions {
		for _, from := range regions[:probing] {
			w.SetLoss(from, to, loss/2)
			w.SetLoss(to, from, loss/2)
		}
		r, err := Listen(ctx, ResponderConfig{Net: w.Net(to), Region: to, Addr: "127.0.0.1:0"})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() { _ = r.Run(ctx) })
		peers = append(peers, Peer{Name: to, Addresses: []string{r.Addr()}})
	}
	var probers []*Prober
	for i, from := range regions[:probing] {
		p, err := New(Config{Region: from, Net: w.Net(from), Seed: uint64(i), Limits: Limits{Interval: time.Second}})
		if err != nil {
			b.Fatal(err)
		}
		p.SetPeers(slices.DeleteFunc(slices.Clone(peers), func(to Peer) bool {
			_, ok := table.RTT(from, to.Name)
			return !ok
		}))
		wg.Go(func() { _ = p.Run(ctx) })
		probers = append(probers, p)
	}
	<-time.After(*probeFor)
	var off, share []float64
	edges, within, samples, aside := 0, 0, 0, 0
	for _, p := range probers {
		for _, e := range p.Edges() {
			want, _ := table.RTT(e.From, e.To)
			d := (e.P50 - want).Abs()
			off, share = append(off, d.Seconds()*1e3), append(share, d.Seconds()/max(want, time.Microsecond).Seconds())
			edges++
			if d <= max(300*time.Microsecond, want/100) {
				within++
			}
			samples += e.Samples
			aside += e.SetAside
		}
	}
	cancel()
	wg.Wait()
	w.Close()
	slices.Sort(off)
	slices.Sort(share)
	b.ReportMetric(off[len(off)/2], "ms-median-off")
	b.ReportMetric(off[len(off)*99/100], "ms-p99-off")
	b.ReportMetric(100*share[len(share)/2], "%-median-off")
	b.ReportMetric(100*float64(within)/float64(edges), "%-edges-within")
	b.ReportMetric(float64(samples)/float64(edges), "samples/edge")
	b.ReportMetric(float64(aside)/float64(edges), "aside/edge")
	b.ReportMetric(0, "ns/op")
}

// ibmTables returns the weekly tables of round trips between IBM's regions, the oldest
// first. Their licence allows no copy here: the result is empty unless NUSA_DATA is a
// folder with ibm-rtt/inter_region_to_2024.csv.
func ibmTables(t testing.TB) []*topology.Table {
	t.Helper()
	data := os.Getenv("NUSA_DATA")
	if data == "" {
		return nil
	}
	f, err := os.Open(filepath.Join(data, "ibm-rtt", "inter_region_to_2024.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	week := map[string]map[[2]string]string{}
	for _, row := range rows[1:] {
		if _, err := strconv.ParseFloat(row[3], 64); err != nil || row[1] == row[2] {
			continue
		}
		if week[row[0]] == nil {
			week[row[0]] = map[[2]string]string{}
		}
		week[row[0]][[2]string{row[1], row[2]}] = row[3]
	}
	var dates []string
	for date := range week {
		dates = append(dates, date)
	}
	slices.Sort(dates)
	var tables []*topology.Table
	for _, date := range dates {
		tables = append(tables, tableOf(t, week[date]))
	}
	return tables
}

func tableOf(t testing.TB, ms map[[2]string]string) *topology.Table {
	t.Helper()
	var names []string
	for p := range ms {
		names = append(names, p[0], p[1])
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var text strings.Builder
	fmt.Fprintf(&text, "from,%s\n", strings.Join(names, ","))
	for _, from := range names {
		text.WriteString(from)
		for _, to := range names {
			text.WriteString("," + ms[[2]string{from, to}])
		}
		text.WriteString("\n")
	}
	table, err := topology.ParseTable(strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	return table
}
