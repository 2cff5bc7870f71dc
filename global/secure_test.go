package global

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestStandbyOfSecureServers: servers that issue their own identities forward calls to the active
// one with them.
func TestStandbyOfSecureServers(t *testing.T) {
	f := newFederation()
	operator := filepath.Join(t.TempDir(), "operator")
	secure := func(c *Config) {
		c.Secure = &Secure{Dir: filepath.Join(t.TempDir(), "identity"), OperatorDir: operator}
	}
	f.start(t, "g1", secure)
	standby := f.start(t, "g2", secure)
	source, err := trust.Open(trust.Options{Dir: operator})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := serve.Dial(f.pipes.net(), standby.addr, source.Dial(identity.GlobalServers()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := nusav1.NewJobsClient(conn).List(ctx, &nusav1.ListJobsRequest{}); err != nil {
		t.Errorf("a call through the standby fails with %v", err)
	}
	made, err := nusav1.NewTokensClient(conn).Create(ctx, &nusav1.CreateTokenRequest{Role: "server", Region: "a"})
	if err != nil {
		t.Fatal(err)
	}
	trail, err := nusav1.NewAuditClient(conn).List(ctx, &nusav1.ListAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e := trail.GetEntries(); len(e) != 1 || e[0].GetVerb() != "create" || e[0].GetName() != made.GetRecord().GetId() || e[0].GetWho() != "operator/local" {
		t.Errorf("the trail has the entries %v, and should have the new token", e)
	}
}
