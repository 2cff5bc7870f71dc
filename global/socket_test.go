package global

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestSocket: who uses the socket of a server may do everything, also at a standby and when no role
// allows it. A certificate with the same name, or a header, is not enough.
func TestSocket(t *testing.T) {
	f := newFederation()
	ca, dir := pkitest.New(t), t.TempDir()
	root := rootFiles(t, ca.Root)
	at := func(name string) string { return filepath.Join(dir, name+".sock") }
	for _, name := range []string{"g1", "g2"} {
		f.start(t, name, withRoot(root), func(c *Config) {
			c.Secure.Dir, c.Socket = filepath.Join(dir, name), at(name)
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	n := f.pipes.net()
	host := network.Host()
	host.Dial = func(ctx context.Context, path string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	dial := func(n network.Net, addr string, source *trust.Source) *grpc.ClientConn {
		conn, err := serve.Dial(n, addr, source.Dial(identity.GlobalServers()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	active, standby := dial(host, at("g1"), nil), dial(host, at("g2"), nil)
	binding := &nusav1.AuthBinding{Name: "admins", Role: "admin", Subjects: []string{"operator/jane"}}
	if _, err := nusav1.NewAuthClient(active).SetBinding(ctx, &nusav1.SetBindingRequest{Binding: binding}); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]*grpc.ClientConn{"active": active, "standby": standby} {
		me, err := nusav1.NewAuthClient(conn).WhoAmI(ctx, &nusav1.WhoAmIRequest{})
		if err != nil || me.GetPrincipal() != "operator/root" {
			t.Errorf("%s: %v, %v", name, me, err)
		}
		if _, err := nusav1.NewOriginsClient(conn).List(ctx, &nusav1.ListOriginsRequest{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	posing := dial(n, "g1:7600", ca.Source("operator/root"))
	_, err := nusav1.NewOriginsClient(posing).List(metadata.AppendToOutgoingContext(ctx, trust.LocalHeader, "1"), &nusav1.ListOriginsRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a certificate of operator/root: %v", err)
	}
	// A standby of an earlier version passes on this header of its caller.
	earlier := metadata.AppendToOutgoingContext(ctx, trust.CallerHeader, ca.ID("operator/joe").String(), trust.LocalHeader, "1")
	_, err = nusav1.NewOriginsClient(dial(n, "g1:7600", ca.Source("global/g2"))).List(earlier, &nusav1.ListOriginsRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a caller of an earlier standby who poses as the administrator: %v", err)
	}
	trail, err := nusav1.NewAuditClient(active).List(ctx, &nusav1.ListAuditRequest{})
	if err != nil || len(trail.GetEntries()) == 0 {
		t.Fatalf("%v, %v", trail, err)
	}
	first := trail.GetEntries()[len(trail.GetEntries())-1]
	for _, e := range trail.GetEntries() {
		if e.GetKind() == "role" {
			first = e
		}
	}
	if first.GetWho() != "operator/root" || !strings.HasPrefix(first.GetFrom(), "uid ") {
		t.Errorf("the trail has %v", first)
	}
}
