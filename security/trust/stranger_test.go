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

func serveOpen(t *testing.T, s *trust.Source) (*open, string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &open{}
	g := grpc.NewServer(grpc.Creds(s.Server(agents)))
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
	server.RefuseIf(func(id identity.ID) error {
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
