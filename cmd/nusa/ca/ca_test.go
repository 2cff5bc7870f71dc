package ca

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	if text, err := run(t, "init", "--dir", dir, "--federation", "example.org"); err != nil || !strings.HasPrefix(text, "federation name example.org: ") {
		t.Fatal(text, err)
	}
	outs := t.TempDir()
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
		out := filepath.Join(outs, strings.ReplaceAll(c.member, "/", "-"))
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
	if _, err := run(t, "issue", "region/jakarta/agent/n2", "--dir", dir, "--out", filepath.Join(outs, "n2")); err != nil {
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
		{"issue global --dir " + dir + " --out " + out, "is none of global/NAME, region/REGION/server/NAME, region/REGION/agent/NAME, operator/NAME"},
		{"issue region/a --dir " + dir + " --out " + out, "is no member"},
		{"issue region/../agent/n --dir " + dir + " --out " + out, "not a name of a region"},
		{"issue global/g1 --ttl 1s --dir " + dir + " --out " + out, "shorter than a minute"},
		{"issue global/g1 --ttl 200000d --dir " + dir + " --out " + out, "200000d is too long: at most 106751d"},
		{"issue global/g1 --ttl 10000d --dir " + dir + " --out " + out, "--ttl: 240000h is longer than the authority of global server g1 lives: give at most 87599h59m"},
		{"issue region/a/agent/n1 --ttl 366d --dir " + dir + " --out " + out, "--ttl: 8784h is longer than the authority of agent n1 of region a lives: give at most 8760h"},
	} {
		if text, err := run(t, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("nusa ca %s: %s %v, want %q", c.args, text, err, c.want)
		}
	}
}

// TestOtherFilesStay: issue writes only into a new folder, or into that of the same member.
func TestOtherFilesStay(t *testing.T) {
	dir, another := filepath.Join(t.TempDir(), "ca"), filepath.Join(t.TempDir(), "ca")
	for _, d := range []string{dir, another} {
		if _, err := run(t, "init", "--dir", d); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		before func(out string) error
		want   string // a part of the error; empty: the command succeeds
	}{
		"another member": {func(out string) error {
			_, err := run(t, "issue", "global/g1", "--dir", dir, "--out", out)
			return err
		}, "/global/g1: name another folder for spiffe://"},
		"another federation": {func(out string) error {
			_, err := run(t, "issue", "operator/jane", "--dir", another, "--out", out)
			return err
		}, "/operator/jane: name another folder"},
		"a key":                 {func(out string) error { return os.WriteFile(filepath.Join(out, trust.KeyFile), []byte("key"), 0o600) }, "has key.pem and no cert.pem: name a new folder"},
		"a damaged certificate": {func(out string) error { return os.WriteFile(filepath.Join(out, trust.CertFile), []byte("x"), 0o600) }, "name a new folder"},
		"damaged roots":         {func(out string) error { return os.WriteFile(filepath.Join(out, trust.RootsFile), []byte("x"), 0o600) }, "remove the file"},
		"the same member": {func(out string) error {
			_, err := run(t, "issue", "operator/jane", "--dir", dir, "--out", out)
			return err
		}, ""},
		"an interrupted issue": {func(out string) error {
			if _, err := run(t, "issue", "operator/jane", "--dir", dir, "--out", out); err != nil {
				return err
			}
			return os.Rename(filepath.Join(out, trust.KeyFile), filepath.Join(out, trust.KeyFile+".new"))
		}, ""},
	} {
		out := t.TempDir()
		if err := c.before(out); err != nil {
			t.Fatal(err)
		}
		before := contents(t, out)
		_, err := run(t, "issue", "operator/jane", "--dir", dir, "--out", out)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || contents(t, out) != before) {
			t.Errorf("%s: %v, want %q; changed: %t", name, err, c.want, contents(t, out) != before)
		}
		if _, err := trust.Open(trust.Options{Dir: out}); c.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// contents returns the texts of the files of a folder.
func contents(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all += fmt.Sprintf("%s: %s\n", e.Name(), text)
	}
	return all
}

// TestRootsStay: a renewal keeps the roots that the member trusts besides that of --dir.
func TestRootsStay(t *testing.T) {
	out := filepath.Join(t.TempDir(), "g1")
	var roots []string
	for range 2 {
		dir := filepath.Join(t.TempDir(), "ca")
		if _, err := run(t, "init", "--dir", dir, "--federation", "example.org"); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "root.pem"))
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, string(text))
		for range 2 {
			if _, err := run(t, "issue", "global/g1", "--dir", dir, "--out", out); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(filepath.Join(out, trust.RootsFile)); err != nil || string(got) != strings.Join(roots, "") {
			t.Errorf("%v, after %d roots the member trusts\n%s", err, len(roots), got)
		}
	}
}

// TestIssueAtOnce: commands at the same time make one authority for a new region.
func TestIssueAtOnce(t *testing.T) {
	dir, outs := filepath.Join(t.TempDir(), "ca"), t.TempDir()
	if _, err := run(t, "init", "--dir", dir); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if _, err := run(t, "issue", fmt.Sprintf("region/a/agent/n%d", i), "--dir", dir, "--out", filepath.Join(outs, fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	authority, err := open(filepath.Join(dir, "regions", "a"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		text, err := os.ReadFile(filepath.Join(outs, fmt.Sprint(i), trust.CertFile))
		if err != nil {
			t.Fatal(err)
		}
		if chain, err := pki.ParseCertificates(text, 4); err != nil || len(chain) != 2 || !chain[1].Equal(authority.Cert) {
			t.Errorf("member %d has another authority: %v", i, err)
		}
	}
}
