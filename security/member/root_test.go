package member_test

import (
	"crypto/rand"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// afterChange returns a server of region a, after the root was changed, with the records of x.
func afterChange(t *testing.T, x *tier) *tier {
	t.Helper()
	env := pki.Env{Now: time.Now(), Rand: rand.Reader}
	next, err := x.ca.Root.NextRoot(env)
	if err != nil {
		t.Fatal(err)
	}
	region, err := next.NewRegion("a", env)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := (&enroll.Issuer{Authority: region}).Issue(x.ca.ID("region/a/server/s1"), key.Public())
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.NewRoots(next.Cert)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := trust.Write(dir, pki.Credentials{Chain: chain, Key: key, Roots: roots}); err != nil {
		t.Fatal(err)
	}
	source, err := trust.Open(trust.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	out := serve(t, x.ca, source, region)
	out.store = x.store
	return out
}

// TestJoinsAfterAnotherRoot: a member that was off during a whole change of the root joins again with a
// new token. A token of a root that the member has given up does not lead back to that root.
func TestJoinsAfterAnotherRoot(t *testing.T) {
	for _, c := range []struct {
		name  string
		now   func(x *tier, c *member.Config)
		joins bool
	}{
		{"with its certificate", func(*tier, *member.Config) {}, true},
		{"with a certificate that has ended", expire, true},
		{"removed meanwhile", func(x *tier, c *member.Config) {
			if removed, err := x.Members().Remove(x.t.Context(), c.ID.Name); !removed || err != nil {
				t.Errorf("not removed: %v", err)
			}
		}, true},
		{"without a token", func(_ *tier, c *member.Config) { c.TokenGiven = false }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := start(t, pkitest.New(t), "region/a/server/s1")
			cfg := x.config("region/a/agent/gpu-1", x.token(agents(nil)))
			if err := x.ensure(cfg); err != nil {
				t.Fatal(err)
			}
			old := cfg
			x = afterChange(t, x)
			cfg.Servers, cfg.TokenGiven = []string{x.addr}, true
			cfg.Token = x.config("region/a/agent/gpu-1", x.token(agents(nil))).Token
			c.now(x, &cfg)
			if err := x.ensure(cfg); err != nil {
				t.Fatal(err)
			}
			joined := func() bool {
				s, err := trust.Open(trust.Options{Dir: cfg.Dir})
				return err == nil && slices.EqualFunc(s.Roots(), x.Source.Roots(), (*x509.Certificate).Equal)
			}
			if joined() != c.joins {
				t.Fatalf("joined %v; the log of the server:\n%s", !c.joins, x.lines())
			}
			if !c.joins {
				return
			}
			old.TokenGiven = true // its server still answers
			if err := x.ensure(old); err != nil || !joined() {
				t.Errorf("with the token of the earlier root: %v, joined %v", err, joined())
			}
		})
	}
}

// TestReportsAgain: a renewal that does not say what the member has replaces its record. So the member
// says it again.
func TestReportsAgain(t *testing.T) {
	x := start(t, pkitest.New(t), "region/a/server/s1")
	cfg := x.config("region/a/agent/gpu-1", x.token(agents(nil)))
	if err := x.ensure(cfg); err != nil {
		t.Fatal(err)
	}
	reported := filepath.Join(cfg.Dir, "reported")
	if err := os.WriteFile(reported, []byte("what it has"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.TokenGiven = true
	if err := x.ensure(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(reported); !os.IsNotExist(err) {
		t.Errorf("the member does not report again: %v", err)
	}
}

// expire replaces the certificate of a member by one that has ended.
func expire(x *tier, c *member.Config) {
	own, err := trust.Open(trust.Options{Dir: c.Dir})
	if err != nil {
		x.t.Fatal(err)
	}
	issuer := &enroll.Issuer{Authority: x.ca.Region("a"), Now: func() time.Time { return time.Now().Add(-26 * time.Hour) }}
	chain, err := issuer.Issue(own.ID(), own.Key().Public())
	if err != nil {
		x.t.Fatal(err)
	}
	roots, err := pki.NewRoots(own.Roots()...)
	if err == nil {
		err = trust.Write(c.Dir, pki.Credentials{Chain: chain, Key: own.Key(), Roots: roots})
	}
	if err != nil {
		x.t.Fatal(err)
	}
}
