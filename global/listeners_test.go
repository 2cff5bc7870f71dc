package global

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestListeners: each listener accepts only the members that it is for.
func TestListeners(t *testing.T) {
	f, ca, dir := newFederation(), pkitest.New(t), t.TempDir()
	f.start(t, "g1", withRoot(rootFiles(t, ca.Root)), func(c *Config) {
		c.Secure.Dir, c.Secure.OperatorDir = filepath.Join(dir, "g1"), filepath.Join(dir, "operator")
		c.APIAddr, c.FederationAddr = "api", "regions"
	})
	for member, listener := range map[string]string{
		"operator/jane": "api", "region/a/server/s1": "regions", "global/g2": "g1:7600", "region/a/agent/n1": "",
	} {
		for _, addr := range []string{"api", "regions", "g1:7600"} {
			if err := f.info(t, addr, ca.Source(member)); (err == nil) != (addr == listener) {
				t.Errorf("%s at %s: %v", member, addr, err)
			}
		}
	}
	operator, err := trust.Open(trust.Options{Dir: filepath.Join(dir, "operator")})
	if err != nil {
		t.Fatal(err)
	}
	made := f.token(t, operator)
	for addr, want := range map[string]codes.Code{"api": codes.OK, "regions": codes.PermissionDenied, "g1:7600": codes.PermissionDenied} {
		creds := trust.FirstContact(ca.Root.Cert.Equal, identity.GlobalServers())
		conn, err := serve.Dial(f.pipes.net(), addr, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+made)
		if _, err := nusav1.NewJobsClient(conn).List(ctx, &nusav1.ListJobsRequest{}); status.Code(err) != want {
			t.Errorf("an access token without a certificate at %s: %v, want %s", addr, err, want)
		}
	}
}

// token returns an access token that an operator makes.
func (f *federation) token(t *testing.T, operator *trust.Source) string {
	t.Helper()
	conn, err := serve.Dial(f.pipes.net(), "api", operator.Dial(identity.GlobalServers()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	made, err := nusav1.NewAuthClient(conn).CreateAccessToken(t.Context(), &nusav1.CreateAccessTokenRequest{Roles: []string{"viewer"}})
	if err != nil {
		t.Fatal(err)
	}
	return made.GetSecret()
}

// info asks a server who it is.
func (f *federation) info(t *testing.T, addr string, source *trust.Source) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	conn, err := serve.Dial(f.pipes.net(), addr, source.Dial(identity.GlobalServers()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
	if err != nil && status.Code(err) != codes.Unavailable {
		t.Errorf("%s: the connection is refused only with its first call: %v", addr, err)
	}
	return err
}
