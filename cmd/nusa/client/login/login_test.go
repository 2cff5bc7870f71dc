package login_test

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/oidc/oidctest"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// TestOperator: a second person becomes an operator by a join token. The certificate renews itself
// while commands run, and one that has expired comes back. A logout removes it.
func TestOperator(t *testing.T) {
	f := start(t, map[identity.Kind]time.Duration{identity.Operator: 8 * time.Second})
	admin := "--identity=" + f.path("g1-operator")
	f.refused("needs --name, and no --region", "token", "create", "--role", "operator", f.at(portActive), admin)
	f.must("token", "create", "--role", "operator", "--name", "jane", "--out", f.path("jane.token"), f.at(portStandby), admin)
	f.must("auth", "binding", "set", "admins", "--role", "admin", "--subject", "operator/local", f.at(portActive), admin)
	f.must("auth", "role", "set", "maker", "--allow", "create,read token", f.at(portActive), admin)
	for _, role := range []string{"operator", "maker"} {
		f.must("auth", "binding", "set", "jane-"+role, "--role", role, "--subject", "operator/jane", f.at(portActive), admin)
	}

	f.user("jane")
	f.refused("has the role regional server", "login", "--join-token-file", f.path("server.token"), f.at(portActive))
	if out := f.must("login", "--join-token-file", f.path("jane.token"), f.at(portActive)); !strings.Contains(out, "as operator/jane") {
		t.Error(out)
	}
	if out := f.must("auth", "whoami", f.at(portActive)); !strings.Contains(out, "operator/jane") || !strings.Contains(out, "maker, operator") {
		t.Error(out)
	}
	// Who may make tokens of other kinds, but not set roles, makes no operators.
	f.refused("operator/jane may not set role", "token", "create", "--role", "operator", "--name", "local", f.at(portActive))
	p := f.profile()
	begun := certificate(t, p).NotBefore
	f.eventually("the certificate is renewed", func() error {
		if err := f.nusa("region", "list", f.at(portActive)).err(); err != nil {
			return err
		}
		_ = os.Remove(filepath.Join(p.Dir, "renewal-tried"))
		if !certificate(t, f.profile()).NotBefore.After(begun) {
			return errors.New("it is the first one")
		}
		return nil
	})
	f.eventually("the certificate has expired", func() error {
		if left := time.Until(certificate(t, f.profile()).NotAfter); left > 0 {
			return fmt.Errorf("it ends in %s", left)
		}
		return nil
	})
	f.must("region", "list", f.at(portActive))
	f.must("logout", f.at(portActive))
	if p := f.profile(); p.HasIdentity() || len(p.Roots) == 0 {
		t.Errorf("after a logout the profile has %v", p)
	}
	f.refused("needs a certificate or an access token", "region", "list", f.at(portActive))
}

func (f *federation) profile() *profile.Profile {
	f.t.Helper()
	p, err := profile.Read(f.addr(portActive))
	if err != nil || p == nil {
		f.t.Fatalf("%v, %v", p, err)
	}
	return p
}

func certificate(t *testing.T, p *profile.Profile) *x509.Certificate {
	t.Helper()
	certs, err := pki.ParseCertificates(p.Cert, 1)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

// TestTokenAlone: an access token and the roots are enough, at both global servers and at a region.
func TestTokenAlone(t *testing.T) {
	f := start(t, nil)
	admin, roots := "--identity="+f.path("g1-operator"), "--roots="+f.path("g1-operator/roots.pem")
	f.must("auth", "token", "create", "--role", "viewer", "--namespace", "pay", "--out", f.path("pay.token"), f.at(portActive), admin)
	f.refused(`role "nosuch" does not exist`, "auth", "token", "create", "--role", "nosuch", f.at(portActive), admin)
	f.user("joe")
	t.Setenv("NUSA_TOKEN_FILE", f.path("pay.token"))
	f.refused("a token is sent over TLS only", "job", "list", f.at(portActive))
	for _, port := range []int{portActive, portStandby} {
		f.must("job", "list", "-n", "pay", f.at(port), roots)
		f.refused("may not read job in namespace other", "job", "list", "-n", "other", f.at(port), roots)
		if out := f.must("auth", "whoami", f.at(port), roots); !strings.Contains(out, "viewer in namespaces pay") {
			t.Error(out)
		}
	}
	t.Setenv("NUSA_TOKEN_FILE", "")
	f.eventually("the region knows the token", func() error {
		return f.nusa("login", "--token-file", f.path("pay.token"), roots, f.at(portRegion)).err()
	})
	f.must("job", "list", "-n", "pay", f.at(portRegion)) // by the profile
	f.must("logout", f.at(portRegion))
}

// TestProvider: people log in with a browser and with a device code, have the roles of the rules, and
// log out. A region knows the token, also without the global tier.
func TestProvider(t *testing.T) {
	f := start(t, nil)
	idp := oidctest.New(t)
	admin := "--identity=" + f.path("g1-operator")
	if err := os.WriteFile(f.path("idp.pem"), idp.Roots(), 0o600); err != nil {
		t.Fatal(err)
	}
	set := []string{"auth", "provider", "set", "corp", "--issuer", idp.URL(), "--client-id", oidctest.ClientID, "--scope", "email", "--subject-claim", "email", "--ca-cert", f.path("idp.pem"), f.at(portActive), admin}
	f.refused("undeclared reference", append(set, "--rule", "viewer=groups")...)
	f.refused(`role "none" does not exist`, append(set, "--rule", "none=true")...)
	f.must(append(set, "--rule", `viewer="ops" in claims.groups`)...)
	list := f.must("auth", "provider", "list", f.at(portActive), admin)
	if !strings.Contains(list, `"ops" in claims.groups`) {
		t.Error(list)
	}

	_, hash, _ := strings.Cut(strings.TrimSpace(list), "--root-hash ")
	f.user("joe")
	f.refused("not one of the federation", "login", "--provider", "corp", "--root-hash", strings.Repeat("0", len(hash)), f.at(portActive))
	f.refused("give the first 32 digits", "login", "--provider", "corp", "--root-hash", hash[:10], f.at(portActive))
	if out := f.browser(idp, "login", "--provider", "corp", "--no-browser", "--root-hash", hash, f.at(portActive)); out.err() != nil {
		t.Fatal(out)
	}

	f.user("jane")
	f.refused("give --roots", "login", "--provider", "corp", f.at(portStandby))
	roots := "--roots=" + f.path("g1-operator/roots.pem")
	f.refused(`no provider "other" (it has: corp)`, "login", "--provider", "other", f.at(portStandby), roots)
	out := f.browser(idp, "login", "--provider", "corp", "--no-browser", f.at(portStandby), roots)
	if out.err() != nil || !strings.Contains(out.out, "as user/test-user@zitadel.ch@corp") {
		t.Fatal(out)
	}
	who := f.must("auth", "whoami", f.at(portStandby))
	if !strings.Contains(who, "user/test-user@zitadel.ch@corp") || !strings.Contains(who, "viewer") {
		t.Error(who)
	}
	f.must("job", "list", f.at(portStandby))
	f.refused("user/test-user@zitadel.ch@corp may not", "region", "cordon", "a", f.at(portStandby))
	stored, err := profile.Read(f.addr(portStandby))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path("jane.access"), []byte(stored.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	f.eventually("the region knows the user", func() error {
		return f.nusa("login", "--token-file", f.path("jane.access"), roots, f.at(portRegion)).err()
	})

	idp.User = "id2"
	f.user("joe")
	if out := f.browser(idp, "login", "--provider", "corp", "--no-browser", f.at(portActive), roots); out.code == 0 || !strings.Contains(out.log, "user/test-user2@zitadel.ch@corp has no role") {
		t.Error(out)
	}
	f.eventually("the refused login is in the audit trail", func() error {
		if out := f.must("audit", "list", "--outcome", "denied", "-o", "json", f.at(portActive), admin); !strings.Contains(out, "user/test-user2@zitadel.ch@corp has no role") {
			return errors.New(out)
		}
		return nil
	})
	f.must("auth", "binding", "set", "joe", "--role", "viewer", "--subject", "user/test-user2@zitadel.ch@corp", "--force", f.at(portActive), admin)
	if out := f.device(idp, true, "login", "--provider", "corp", "--device", f.at(portActive), roots); out.err() != nil {
		t.Fatal(out)
	}
	if out := f.device(idp, false, "login", "--provider", "corp", "--device", f.at(portActive), roots); out.code == 0 || !strings.Contains(out.log, "access_denied") {
		t.Error(out)
	}
	f.must("job", "list", f.at(portActive))
	f.must("logout", f.at(portActive))
	f.refused("needs a certificate or an access token", "job", "list", f.at(portActive))

	f.user("jane")
	for _, stop := range f.globals {
		stop()
	}
	f.must("job", "list", f.at(portRegion)) // an island
	f.refused("user/test-user@zitadel.ch@corp may not cordon region", "region", "cordon", "a", f.at(portRegion))
}

// browser runs a login, and opens the address that the command prints.
func (f *federation) browser(idp *oidctest.Provider, args ...string) result {
	return f.during(func(log *lines) { idp.Browse(f.after(log, "log in with a browser: ")) }, args...)
}

// device runs a login, and approves the code that the command prints.
func (f *federation) device(idp *oidctest.Provider, approve bool, args ...string) result {
	return f.during(func(log *lines) { idp.Approve(f.after(log, "and enter the code "), approve) }, args...)
}

// during runs a command, and does what the user does meanwhile.
func (f *federation) during(user func(log *lines), args ...string) result {
	var log lines
	done := make(chan result, 1)
	go func() { done <- f.watched(&log, args...) }()
	user(&log)
	return <-done
}
