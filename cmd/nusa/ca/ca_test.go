package ca

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// run runs nusa ca with arguments.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

// TestIdentitiesOfAFederation: members get identities that they trust among one another. A
// repeated command renews an identity, and the authority of a region stays the same.
func TestIdentitiesOfAFederation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	if text, err := run(t, "init", "--dir", dir, "--federation", "example.org"); err != nil || !strings.HasPrefix(text, "federation example.org: ") {
		t.Fatal(text, err)
	}
	out := filepath.Join(t.TempDir(), "member")
	for _, c := range []struct {
		member string
		more   []string
		life   time.Duration
		chain  int
	}{
		{"global/g1", nil, 72 * time.Hour, 1},
		{"operator/jane", []string{"--ttl", "90d"}, 90 * 24 * time.Hour, 1},
		{"region/jakarta/server/s1", nil, 72 * time.Hour, 2},
		{"region/jakarta/agent/n1", nil, 24 * time.Hour, 2},
		{"region/jakarta/agent/n1", []string{"--ttl", "36h"}, 36 * time.Hour, 2},
	} {
		if text, err := run(t, append([]string{"issue", c.member, "--dir", dir, "--out", out}, c.more...)...); err != nil {
			t.Fatal(c.member, text, err)
		}
		s, err := trust.Open(trust.Options{Dir: out})
		if err != nil || s.ID().String() != "spiffe://example.org/"+c.member {
			t.Errorf("%s: %v, %v", c.member, s.ID(), err)
		}
		text, err := os.ReadFile(filepath.Join(out, trust.CertFile))
		if err != nil {
			t.Fatal(err)
		}
		chain, err := pki.ParseCertificates(text, 4)
		if err != nil || len(chain) != c.chain {
			t.Fatalf("%s: %d certificates, %v", c.member, len(chain), err)
		}
		if got := chain[0].NotAfter.Sub(chain[0].NotBefore) - pki.Backdate; got != c.life {
			t.Errorf("%s lives %s, want %s", c.member, got, c.life)
		}
	}
	first, err := os.ReadFile(filepath.Join(dir, "regions", "jakarta.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, "issue", "region/jakarta/agent/n2", "--dir", dir, "--out", out); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(filepath.Join(dir, "regions", "jakarta.pem")); err != nil || !bytes.Equal(first, second) {
		t.Errorf("the region has another authority: %v", err)
	}
	for _, name := range []string{"root-key.pem", filepath.Join("regions", "jakarta-key.pem")} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestRefused(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "ca"), t.TempDir()
	if _, err := run(t, "init", "--dir", dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"init", "--dir is required"},
		{"init --dir " + dir, "already has a root certificate"},
		{"init --dir " + out + " --federation Example", "not a name of a federation"},
		{"issue global/g1 --dir " + dir, "--dir and --out are required"},
		{"issue global/g1 --dir " + out + " --out " + out, "`nusa ca init --dir " + out + "` makes a root certificate"},
		{"issue global --dir " + dir + " --out " + out, "is none of global/NAME, region/REGION"},
		{"issue region/a --dir " + dir + " --out " + out, "is no member"},
		{"issue region/../agent/n --dir " + dir + " --out " + out, "not a name of a region"},
		{"issue global/g1 --ttl 1s --dir " + dir + " --out " + out, "shorter than a minute"},
	} {
		if text, err := run(t, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("nusa ca %s: %s %v, want %q", c.args, text, err, c.want)
		}
	}
}
