package trust_test

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// open is a gRPC server that answers everybody.
type open struct {
	grpc_health_v1.UnimplementedHealthServer
	mu   sync.Mutex
	seen []string
}

func (o *open) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	id, ok := trust.PeerOf(ctx)
	text := id.String()
	if !ok {
		text = "nobody"
	}
	if !trust.Encrypted(ctx) {
		text += ", plain"
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, text)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

// Watch implements grpc_health_v1.HealthServer.
func (o *open) Watch(_ *grpc_health_v1.HealthCheckRequest, s grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	if err := s.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func serveOpen(t *testing.T, s *trust.Source) (*open, string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &open{}
	g := grpc.NewServer(grpc.Creds(s.Server(agents)), grpc.InTapHandle(trust.Tap))
	grpc_health_v1.RegisterHealthServer(g, o)
	var done sync.WaitGroup
	done.Go(func() { _ = g.Serve(lis) })
	t.Cleanup(func() { g.Stop(); done.Wait() })
	return o, lis.Addr().String()
}

// TestFirstContact: a client without a certificate accepts only a server with the root that it
// knows, and only the servers that it expects. The server sees nobody.
func TestFirstContact(t *testing.T) {
	ca, other := pkitest.New(t), pkitest.New(t)
	o, addr := serveOpen(t, ca.Source("region/a/server/s1"))
	knows := func(of *pkitest.CA) func(*x509.Certificate) bool { return of.Root.Cert.Equal }
	for name, c := range map[string]struct {
		accept func(*x509.Certificate) bool
		rules  identity.Rules
		want   string
	}{
		"the root":                      {knows(ca), servers, ""},
		"another root":                  {knows(other), servers, "unknown authority"},
		"the authority is not the root": {ca.Region("a").Cert.Equal, servers, "outside of what its authority may issue"},
		"a server of another region":    {knows(ca), identity.ServersOf("b"), "another peer was expected"},
		"a global server":               {knows(ca), identity.GlobalServers(), "another peer was expected"},
	} {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(trust.FirstContact(c.accept, c.rules)))
		if err != nil {
			t.Fatal(err)
		}
		err = check(t, conn)
		conn.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.seen) != 1 || o.seen[0] != "nobody" {
		t.Errorf("the server saw %v", o.seen)
	}
}

// TestRefusedPeersAreClosed: Recheck ends the open connections of a peer that is refused now, and
// the peer cannot connect again until it is no longer refused.
func TestRefusedPeersAreClosed(t *testing.T) {
	ca := pkitest.New(t)
	server := ca.Source("region/a/server/s1")
	var mu sync.Mutex
	banned := identity.ID{}
	server.RefuseIf(func(id identity.ID, _ trust.Key) error {
		mu.Lock()
		defer mu.Unlock()
		if id == banned {
			return errors.New("banned")
		}
		return nil
	})
	_, addr := serveOpen(t, server)
	conns := map[string]*grpc.ClientConn{}
	for _, name := range []string{"n1", "n2"} {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(ca.Source("region/a/agent/"+name).Client(servers)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := check(t, conn); err != nil {
			t.Fatal(err)
		}
		conns[name] = conn
	}
	mu.Lock()
	banned = ca.ID("region/a/agent/n1")
	mu.Unlock()
	server.Recheck()
	if err := check(t, conns["n1"]); err == nil || check(t, conns["n2"]) != nil {
		t.Errorf("the banned peer: %v, the other: %v", err, check(t, conns["n2"]))
	}
	mu.Lock()
	banned = identity.ID{}
	mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := grpc_health_v1.NewHealthClient(conns["n1"]).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after the ban: %v", err)
	}
}

// TestStrangersAreBounded: a client without a certificate makes few calls at once and sends little,
// and all of them together send little. Others still get in, and members are not bounded.
func TestStrangersAreBounded(t *testing.T) {
	ca := pkitest.New(t)
	_, addr := serveOpen(t, ca.Source("region/a/server/s1"))
	connect := func(c credentials.TransportCredentials) *grpc.ClientConn {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(c))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	stranger := func() *grpc.ClientConn { return connect(trust.FirstContact(ca.Root.Cert.Equal, servers)) }
	member := connect(ca.Source("region/a/agent/n1").Client(servers))
	send := func(conn *grpc.ClientConn, bytes int) error {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", bytes)})
		return err
	}
	watch := func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	if err := send(stranger(), 3<<20); status.Code(err) != codes.Unavailable {
		t.Errorf("a large request without a certificate: %v", err)
	}
	if err := send(member, 3<<20); err != nil {
		t.Errorf("a large request of a member: %v", err)
	}

	const most = 16
	ctx, cancel := context.WithCancel(t.Context())
	busy := stranger()
	for n := range most {
		if err := watch(ctx, busy); err != nil {
			t.Fatalf("call %d: %v", n+1, err)
		}
		if err := watch(ctx, member); err != nil {
			t.Fatal(err)
		}
	}
	if err := watch(ctx, busy); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one call more: %v", err)
	}
	if err := watch(ctx, member); err != nil {
		t.Errorf("one call more of a member: %v", err)
	}
	cancel()
	for err := watch(t.Context(), busy); err != nil; err = watch(t.Context(), busy) {
		if status.Code(err) != codes.ResourceExhausted || t.Context().Err() != nil {
			t.Fatalf("a call after the others have ended: %v", err)
		}
	}

	first := stranger()
	if err := send(first, 1<<20); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if err := send(stranger(), 1<<20); err != nil {
			t.Errorf("a stranger beside others who have sent much: %v", err)
		}
	}
	late, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	for state := first.GetState(); state == connectivity.Ready; state = first.GetState() {
		if !first.WaitForStateChange(late, state) {
			t.Fatal("the oldest of many strangers is still connected")
		}
	}
}
