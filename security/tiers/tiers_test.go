// Package tiers_test runs all tiers of a federation with identities over loopback, and
// attacks them.
package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent"
	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/security/auditsink"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

func TestMain(m *testing.M) {
	// A probe of memberlist ends only after its time-out.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// patience bounds the wait for a condition. Even a slow and busy machine needs less.
const patience = 2 * time.Minute

// banBound bounds the time until a ban ends connections. It is two seconds on a machine that is not busy.
const banBound = 10 * time.Second

// federation is a running federation with two global servers, region a with three servers and
// two agents, and region b with one server and one agent.
type federation struct {
	t    *testing.T
	ca   *pkitest.CA
	port int
	mem  *store.Memory
	log  *slog.Logger
	// trails is the folder of the files to which servers write their audit trails.
	trails string
	// globals stop the global servers.
	globals []func()
}

func (f *federation) addr(offset int) string { return fmt.Sprintf("127.0.0.1:%d", f.port+offset) }

// The ports of the federation.
const (
	portGlobal, portStandby = 0, 1
	portA, portB            = 10, 40 // ten for each server: gRPC, Raft, gossip, probe
)

// start starts the federation, which ends with the test.
func start(t *testing.T) *federation {
	t.Helper()
	f := &federation{t: t, ca: pkitest.New(t), port: freeport.Reserve(t, 60), mem: store.NewMemory(), trails: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	if os.Getenv("NUSA_TEST_LOG") != "" {
		f.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	f.global("g1", portGlobal)
	f.global("g2", portStandby)
	for s := range 3 {
		f.server("a", s, 3, portA+10*s)
	}
	f.server("b", 0, 1, portB)
	f.agent("a", "n1", portA, portA+10, portA+20)
	f.agent("a", "n2", portA, portA+10, portA+20)
	f.agent("b", "n1", portB)
	return f
}

// trail returns the file to which a server writes its audit trail. It is empty if the federation writes
// none.
func (f *federation) trail(server string) string {
	if f.trails == "" {
		return ""
	}
	return filepath.Join(f.trails, server)
}

// run runs a role until the test ends, or until stop is called.
func (f *federation) run(name string, role func(ctx context.Context) error) (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- role(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("%s ended with %v", name, err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *federation) global(name string, port int) {
	client := f.mem.Client()
	f.t.Cleanup(func() { client.Close() })
	stop := f.run(name, func(ctx context.Context) error {
		return global.Run(ctx, global.Config{Name: name, GRPCAddr: f.addr(port), HTTPAddr: "-", Store: client,
			AuditSink: auditsink.Config{File: f.trail(name)},
			Identity:  f.ca.Source("global/" + name), Logger: f.log.With("server", name)})
	})
	f.globals = append(f.globals, stop)
}

func (f *federation) server(region string, s, of, port int) {
	name, dir := fmt.Sprintf("s%d", s+1), f.t.TempDir()
	f.run("server "+name+" of "+region, func(ctx context.Context) error {
		return regional.Run(ctx, regional.Config{
			Region: &nusav1.RegionDefinition{Name: region}, Name: name, DataDir: dir,
			GRPCAddr: f.addr(port), RaftAddr: f.addr(port + 1), GossipAddr: f.addr(port + 2), ProbeAddr: f.addr(port + 3), HTTPAddr: "-",
			Join: []string{f.addr(port - 10*s + 2)}, BootstrapExpect: of, Global: []string{f.addr(portStandby), f.addr(portGlobal)},
			Identity: f.ca.Source("region/" + region + "/server/" + name), HistoryBytes: -1, AuditSink: auditsink.Config{File: f.trail("region-" + region)}, Logger: f.log.With("server", region+name),
		})
	})
}

func (f *federation) agent(region, name string, ports ...int) {
	f.agentIn(f.t.TempDir(), region, name, ports...)
}

// agentIn runs an agent with a data directory until the test ends, or until stop is called.
func (f *federation) agentIn(dir, region, name string, ports ...int) (stop func()) {
	f.t.Helper()
	var servers []string
	for _, p := range ports {
		servers = append(servers, f.addr(p))
	}
	return f.run("agent "+name+" of "+region, func(ctx context.Context) error {
		return agent.Run(ctx, agent.Config{
			Region: region, Name: name, DataDir: dir, Servers: servers, HTTPAddr: "-",
			Drivers:  map[string]driver.Driver{"mock": mock.New(mock.Config{})},
			Identity: f.ca.Source("region/" + region + "/agent/" + name), Logger: f.log.With("agent", region+name),
		})
	})
}

// as returns a connection to a port with the identity of a member, for example "operator/jane".
func (f *federation) as(member string, port int) *grpc.ClientConn {
	f.t.Helper()
	return f.dial(f.ca.Source(member), port)
}

func (f *federation) dial(source *trust.Source, port int) *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient(f.addr(port), source.Dial(identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}}))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// eventually calls want until it returns nil.
func (f *federation) eventually(what string, want func(ctx context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := want(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			f.t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

const twoRegions = `
name: web
regions: {spread: {min: 2, max: 2}, divide: even}
groups:
  main:
    count: 4
    tasks:
      t:
        driver: mock
        config: {}
        resources: {cpu: 10m, memory: 16MiB}
`

// runJob submits a job through the standby server, and waits until it runs in both regions. It
// returns the allocations. None of them is about to stop.
func (f *federation) runJob() []*nusav1.Allocation {
	f.t.Helper()
	spec, err := job.Parse([]byte(twoRegions), "job.yaml")
	if err != nil {
		f.t.Fatal(err)
	}
	jane := f.as("operator/jane", portStandby)
	f.eventually("three nodes are ready", func(ctx context.Context) error {
		r, err := nusav1.NewNodesClient(jane).List(ctx, &nusav1.ListNodesRequest{})
		if err == nil && (len(r.GetNodes()) != 3 || len(r.GetErrors()) > 0) {
			err = fmt.Errorf("%d nodes, %v", len(r.GetNodes()), r.GetErrors())
		}
		return err
	})
	f.eventually("the job is submitted", func(ctx context.Context) error {
		_, err := nusav1.NewJobsClient(jane).Submit(ctx, &nusav1.SubmitRequest{Spec: spec, IdempotencyKey: "once"})
		return err
	})
	var running []*nusav1.Allocation
	f.eventually("the job runs in both regions", func(ctx context.Context) error {
		r, err := nusav1.NewAllocationsClient(jane).List(ctx, &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "web"}})
		if err != nil {
			return err
		}
		running = slices.DeleteFunc(r.GetAllocations(), func(a *nusav1.Allocation) bool {
			return a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING || a.GetDesired() != nusav1.AllocDesired_ALLOC_DESIRED_RUN
		})
		regions := map[string]bool{}
		for _, a := range running {
			regions[a.GetRegion()] = true
		}
		if len(running) != 4 || len(regions) != 2 {
			return fmt.Errorf("%d instances run in %v", len(running), regions)
		}
		return nil
	})
	return running
}

// TestFederationWithIdentities: a job runs in two regions, calls reach an agent through two
// tunnels, and the attacks on the wires fail while the job runs.
func TestFederationWithIdentities(t *testing.T) {
	f := start(t)
	f.runJob()
	t.Run("overrides", f.overridesNameTheirCaller)
	allocs := f.runJob() // the overrides have replaced an instance

	t.Run("calls through tunnels", func(*testing.T) {
		for _, port := range []int{portGlobal, portStandby} {
			jane := f.as("operator/jane", port)
			for _, a := range allocs {
				f.eventually("logs of an instance in region "+a.GetRegion(), func(ctx context.Context) error {
					stream, err := nusav1.NewAllocationsClient(jane).Logs(ctx, &nusav1.LogsRequest{Allocation: a.GetId(), Task: "t", Stdout: true})
					if err == nil {
						_, err = stream.Recv()
					}
					if errors.Is(err, io.EOF) {
						return nil
					}
					return err
				})
			}
		}
	})
	t.Run("each server of a region", func(*testing.T) {
		for s := range 3 {
			conn := f.as("operator/jane", portA+10*s)
			f.eventually(fmt.Sprintf("nodes from server %d", s+1), func(ctx context.Context) error {
				r, err := nusav1.NewNodesClient(conn).List(ctx, &nusav1.ListNodesRequest{})
				if err == nil && len(r.GetNodes()) != 2 {
					err = fmt.Errorf("%d nodes", len(r.GetNodes()))
				}
				return err
			})
		}
	})
	t.Run("the region's servers compare their states", func(*testing.T) {
		conn := f.as("operator/jane", portA)
		f.eventually("three states", func(ctx context.Context) error {
			r, err := nusav1.NewRegionsClient(conn).Verify(ctx, &nusav1.GetRegionRequest{Name: "a"})
			if err == nil && len(r.GetServers()) != 3 {
				err = fmt.Errorf("%d servers", len(r.GetServers()))
			}
			for _, s := range r.GetServers() {
				if s.GetError() != "" {
					err = fmt.Errorf("server %s: %s", s.GetId(), s.GetError())
				}
			}
			return err
		})
	})
	t.Run("calls", f.attackCalls)
	t.Run("sessions of regions", f.attackFederation)
	t.Run("audit trail", f.denialsAreRecorded)
	t.Run("audit trails of regions", f.trailsAreForwarded)
	t.Run("sessions of agents", func(t *testing.T) { f.attackDispatch(t, allocs) })
	t.Run("times of certificates", f.attackTimes)
	t.Run("the authority of another region", f.attackAuthority)
	t.Run("calls of an agent", f.attackAsAgent)
	// A node whose session has ended is not asked, so this comes before the agent that lies.
	t.Run("reconciliation", f.reconciles)
	t.Run("reports of another's allocations", func(t *testing.T) { f.attackReports(t, allocs) })
	t.Run("names", func(t *testing.T) { f.attackNames(t, allocs) })
	t.Run("sizes", f.attackSizes)
	t.Run("Raft", f.attackRaft)
	t.Run("starts with the identity of another", f.wrongStarts)
	t.Run("bans", f.bans)
	t.Run("bans of whole regions", f.regionBans)
	t.Run("rights", func(t *testing.T) { f.rights(t, allocs) })
	t.Run("rights of regions", func(t *testing.T) { f.rightsOfRegions(t, allocs) })
	t.Run("bans of regions", f.bansOfRegions)
}

// attackCalls: members call what is not theirs.
func (f *federation) attackCalls(t *testing.T) {
	list := func(conn *grpc.ClientConn) error {
		_, err := nusav1.NewJobsClient(conn).List(t.Context(), &nusav1.ListJobsRequest{})
		return err
	}
	plain, err := grpc.NewClient(f.addr(portGlobal), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	foreign := pkitest.New(t)
	for name, c := range map[string]struct {
		conn *grpc.ClientConn
		want codes.Code
		text string
	}{
		"an operator":                       {f.as("operator/jane", portGlobal), codes.OK, ""},
		"an operator at a region":           {f.as("operator/jane", portB), codes.OK, ""},
		"not encrypted":                     {plain, codes.Unavailable, ""},
		"an agent at the global tier":       {f.as("region/a/agent/n1", portGlobal), codes.Unavailable, "refuses the certificate"},
		"an agent at its region":            {f.as("region/a/agent/n1", portA), codes.PermissionDenied, "agent n1 of region a may not call /nusa.v1.Jobs/List"},
		"an agent at another region":        {f.as("region/a/agent/n1", portB), codes.Unavailable, "refuses the certificate"},
		"a region's server":                 {f.as("region/a/server/s1", portGlobal), codes.PermissionDenied, "regional server s1 of region a may not call"},
		"a region's server at its sibling":  {f.as("region/a/server/s9", portA), codes.PermissionDenied, "may not call"},
		"a region's server at another's":    {f.as("region/b/server/s1", portA), codes.PermissionDenied, "may not call"},
		"an operator of another federation": {f.dial(foreign.Source("operator/jane"), portGlobal), codes.Unavailable, "unknown authority"},
	} {
		var err error
		f.eventually(name, func(context.Context) error {
			err = list(c.conn)
			if rpcerr.From(err).Reason != "" {
				return err // an election is under way
			}
			return nil
		})
		if status.Code(err) != c.want || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %s %q", name, err, c.want, c.text)
		}
	}
}

// attackFederation: members open the session of a region that is not theirs.
func (f *federation) attackFederation(t *testing.T) {
	for member, want := range map[string]string{
		"region/b/server/s1": `regional server s1 of region b may not open a session of region "a"`,
		"operator/jane":      "operator jane may not call /nusa.v1.Federation/Session",
		"global/g2":          "global server g2 may not call /nusa.v1.Federation/Session",
	} {
		for _, port := range []int{portGlobal, portStandby} {
			stream, err := nusav1.NewFederationClient(f.as(member, port)).Session(t.Context())
			if err == nil {
				hello := &nusav1.RegionHello{Definition: &nusav1.RegionDefinition{Name: "a"}, ClusterId: "x", Protocol: 1, Master: "s1"}
				_ = stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Hello{Hello: hello}})
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", member, err, want)
			}
		}
	}
}

// denialsAreRecorded: denied calls are in the audit trail of the tier that denied them, and changes
// have the operator who made them.
func (f *federation) denialsAreRecorded(t *testing.T) {
	for s := range 3 { // only the master records, and any server may be the master
		_, err := nusav1.NewJobsClient(f.as("region/a/agent/n1", portA+10*s)).List(t.Context(), &nusav1.ListJobsRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("an agent lists jobs: %v", err)
		}
	}
	for port, want := range map[int][]string{
		portGlobal: {"global/g2 Federation/Session denied", "operator/jane Federation/Session denied", "operator/jane Jobs/Submit done"},
		portA:      {"region/a/agent/n1 Jobs/List denied"},
	} {
		audit := nusav1.NewAuditClient(f.as("operator/jane", port))
		f.eventually("the audit trail has the denials", func(ctx context.Context) error {
			resp, err := audit.List(ctx, &nusav1.ListAuditRequest{Limit: 1000})
			if err != nil {
				return err
			}
			have := map[string]bool{}
			for _, e := range resp.GetEntries() {
				have[e.GetWho()+" "+e.GetMethod()+" "+e.GetOutcome()] = e.GetFrom() != "" && (e.GetOutcome() != "denied" || e.GetReason() != "")
			}
			for _, w := range want {
				if !have[w] {
					return fmt.Errorf("%q is not in the trail: %v", w, have)
				}
			}
			return nil
		})
	}
}

// attackDispatch: members open the session of an agent that is not theirs. Every server of the
// region is attacked, because only the master knows the nodes.
func (f *federation) attackDispatch(t *testing.T, allocs []*nusav1.Allocation) {
	id := ""
	for _, a := range allocs {
		if a.GetRegion() == "a" && a.GetNodeName() == "n2" {
			id = a.GetNodeId()
		}
	}
	if id == "" {
		r, err := nusav1.NewNodesClient(f.as("operator/jane", portA)).List(t.Context(), &nusav1.ListNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range r.GetNodes() {
			if n.GetName() == "n2" {
				id = n.GetId()
			}
		}
	}
	for _, c := range []struct{ member, name, id, want string }{
		{"operator/jane", "n1", "x", "operator jane may not call /nusa.v1.Dispatch/Session"},
		{"region/a/server/s9", "n1", "x", "may not call /nusa.v1.Dispatch/Session"},
		{"region/a/agent/n1", "n2", id, `the certificate is that of agent n1 of region a, and the agent says that it is node "n2"`},
		{"region/a/agent/n1", "n1", id, `belongs to node "n2", and the certificate is that of agent n1 of region a`},
	} {
		f.eventually(fmt.Sprintf("%s as %s with id %s is refused with %q", c.member, c.name, c.id, c.want), func(context.Context) error {
			return f.dispatchRefuses(t, c.member, c.name, c.id, c.want)
		})
	}
}

// dispatchRefuses opens the session of an agent at each server of region a. It returns an error if no server
// says what is wanted.
func (f *federation) dispatchRefuses(t *testing.T, member, name, id, want string) error {
	t.Helper()
	var said []string
	for s := range 3 {
		conn := f.as(member, portA+10*s)
		stream, err := nusav1.NewDispatchClient(conn).Session(t.Context())
		text := ""
		if err == nil {
			hello := &nusav1.AgentHello{NodeId: id, Name: name, Region: "a", Protocol: 1, Inventory: &nusav1.NodeInventory{}}
			_ = stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Hello{Hello: hello}})
			var m *nusav1.MasterMessage
			m, err = stream.Recv()
			text = m.GetRefused().GetMessage()
			if m.GetWelcome() != nil {
				t.Errorf("%s was welcomed as %s", member, name)
			}
		}
		if err != nil {
			text = err.Error()
		}
		conn.Close()
		if strings.Contains(text, want) {
			return nil
		}
		said = append(said, text)
	}
	return fmt.Errorf("the servers said %q", said)
}

// attackRaft: members connect to the Raft port of a region that is not theirs.
func (f *federation) attackRaft(t *testing.T) {
	for member, want := range map[string]error{
		"region/a/server/s9": nil, "region/b/server/s1": trust.ErrRefused, "region/a/agent/n1": trust.ErrRefused,
		"operator/jane": trust.ErrRefused, "global/g1": trust.ErrRefused,
	} {
		raw, err := net.Dial("tcp", f.addr(portA+1))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := f.ca.Source(member).Secure(t.Context(), raw, identity.ServersOf("a"))
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", member, err, want)
		}
		if err == nil {
			conn.Close()
		}
	}
	plain, err := net.Dial("tcp", f.addr(portA+1))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Write(append([]byte{1, 2}, "s1 and a message of Raft that is not encrypted"...)); err != nil {
		t.Fatal(err)
	}
	_ = plain.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(plain); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a plain stream stays open")
	}
}

// wrongStarts: a role does not start with the identity of another member.
func (f *federation) wrongStarts(t *testing.T) {
	source := f.ca.Source("region/a/agent/n1")
	for name, err := range map[string]error{
		"global": global.Run(t.Context(), global.Config{Name: "g3", GRPCAddr: f.addr(50), HTTPAddr: "-", Store: f.mem.Client(), Identity: source}),
		"regional": regional.Run(t.Context(), regional.Config{Region: &nusav1.RegionDefinition{Name: "a"}, Name: "s4", DataDir: t.TempDir(),
			GRPCAddr: f.addr(50), RaftAddr: f.addr(51), GossipAddr: f.addr(52), ProbeAddr: f.addr(53), HTTPAddr: "-", Identity: source}),
		"agent of another name":   agent.Run(t.Context(), agent.Config{Region: "a", Name: "n3", DataDir: t.TempDir(), Servers: []string{f.addr(portA)}, HTTPAddr: "-", Identity: source}),
		"agent of another region": agent.Run(t.Context(), agent.Config{Region: "b", Name: "n1", DataDir: t.TempDir(), Servers: []string{f.addr(portA)}, HTTPAddr: "-", Identity: source}),
	} {
		if err == nil || !strings.Contains(err.Error(), "not of agent n1 of region a") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
