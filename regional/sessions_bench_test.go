package regional_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
)

// benchAgents is the number of agents, each with its own connection.
const benchAgents = 1000

// agentsOf is the environment variable with the server's address. It is set only in the
// process that runs the agents of BenchmarkSessions.
const agentsOf = "NUSA_BENCH_AGENTS_OF"

// BenchmarkSessions measures the memory that a connected agent costs a master: connection,
// session and node, after a heartbeat with statistics. The agents run in another process.
// B/agent is the total. stack-B/agent is the part of it that goroutine stacks take. "bare"
// is a gRPC server that sends the same responses and stores nothing.
func BenchmarkSessions(b *testing.B) {
	for name, serve := range map[string]func(context.Context, chan<- string) error{"master": serveMaster, "bare": serveBare} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				sessions(b, serve)
			}
		})
	}
}

func serveMaster(ctx context.Context, ready chan<- string) error {
	return regional.Run(ctx, regional.Config{
		Region: &nusav1.RegionDefinition{Name: regionName}, Name: "s1", InMemory: true, HTTPAddr: "-",
		GRPCAddr: "127.0.0.1:0", RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", ProbeAddr: "127.0.0.1:0",
		Ready: func(a regional.Addresses) { ready <- a.GRPC },
	})
}

func serveBare(ctx context.Context, ready chan<- string) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10))
	nusav1.RegisterDispatchServer(g, bareDispatch{})
	defer context.AfterFunc(ctx, g.Stop)()
	ready <- lis.Addr().String()
	return g.Serve(lis)
}

// bareDispatch grants a lease to every agent.
type bareDispatch struct {
	nusav1.UnimplementedDispatchServer
}

func (bareDispatch) Session(stream nusav1.Dispatch_SessionServer) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		out := &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Welcome{Welcome: &nusav1.MasterWelcome{}}}
		if r := in.GetLease(); r != nil {
			out.Kind = &nusav1.MasterMessage_Lease{Lease: &nusav1.LeaseGrant{Id: r.GetId()}}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func sessions(b *testing.B, serve func(context.Context, chan<- string) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended, ready := make(chan error, 1), make(chan string, 1)
	go func() { ended <- serve(ctx, ready) }()
	var addr string
	select {
	case addr = <-ready:
	case err := <-ended:
		b.Fatal(err)
	}
	heap, stacks, goroutines := inUse()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAgentsOfBenchmark$")
	cmd.Env = append(os.Environ(), agentsOf+"="+addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "connected\n" {
		b.Fatalf("the agents say %q, %v", line, err)
	}
	heapThen, stacksThen, goroutinesThen := inUse()
	const n = benchAgents
	b.ReportMetric((heapThen+stacksThen-heap-stacks)/n, "B/agent")
	b.ReportMetric((stacksThen-stacks)/n, "stack-B/agent")
	b.ReportMetric((goroutinesThen-goroutines)/n, "goroutines/agent")
	_ = in.Close()
	_ = cmd.Wait()
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

// inUse returns the bytes of the heap and of stacks, and the number of goroutines. It runs
// several collections, because one collection halves a stack at most once.
func inUse() (heap, stacks, goroutines float64) {
	for range 4 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), float64(m.StackInuse), float64(runtime.NumGoroutine())
}

// TestAgentsOfBenchmark runs the agents of BenchmarkSessions. It runs only in the second
// process, which the benchmark starts.
func TestAgentsOfBenchmark(t *testing.T) {
	addr := os.Getenv(agentsOf)
	if addr == "" {
		t.Skip("only for BenchmarkSessions, which starts it")
	}
	for i := range benchAgents {
		conn, err := serve.Dial(network.Host(), addr, grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for !connects(t, conn, i) { // until the server is the master
			<-time.After(20 * time.Millisecond)
		}
	}
	fmt.Println("connected")
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // returns when the benchmark closes stdin
}

// connects opens agent i's session and waits for its first lease. It returns false when the
// server is not the master yet.
func connects(t *testing.T, conn *grpc.ClientConn, i int) bool {
	stream, err := nusav1.NewDispatchClient(conn).Session(context.Background())
	if err != nil {
		return false
	}
	say := func(m *nusav1.AgentMessage) {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	say(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Hello{Hello: &nusav1.AgentHello{
		NodeId: fmt.Sprintf("00000000-0000-4000-8000-%012d", i), Name: fmt.Sprintf("node-%05d", i), Region: regionName,
		Address: fmt.Sprintf("10.0.%d.%d", i/256, i%256), Protocol: 1,
		Inventory: &nusav1.NodeInventory{
			Capacity: &nusav1.Resources{CpuMilli: 64_000, MemoryBytes: 256 << 30, DiskBytes: 4 << 40}, Pool: "default",
			Labels:  map[string]string{"rack": fmt.Sprint("r", i%40), "zone": fmt.Sprint("z", i%3)},
			Drivers: []*nusav1.DriverInfo{{Name: "process", Healthy: true, Capabilities: []string{"self_fencing"}}},
			PortMin: 20000, PortMax: 29999,
		},
	}}})
	m, err := stream.Recv()
	if err != nil || m.GetWelcome() == nil {
		return false
	}
	stats := &nusav1.NodeStats{
		Cpu: 0.4, MemoryUsedBytes: 64 << 30, MemoryAvailableBytes: 192 << 30, Age: durationpb.New(time.Second),
		Disks: []*nusav1.DiskStats{{Mount: "/", UsedBytes: 1 << 40, TotalBytes: 4 << 40}},
	}
	say(&nusav1.AgentMessage{Stats: stats, Kind: &nusav1.AgentMessage_Lease{Lease: &nusav1.LeaseRequest{Id: 1}}})
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetLease() != nil {
			return true
		}
	}
}
