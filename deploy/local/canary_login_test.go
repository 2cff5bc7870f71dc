//go:build integration

package local_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/oidc"
	"github.com/nusa-scheduler/nusa/security/oidc/oidctest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// registry returns a file with the password of a registry of images.
func (c *canaries) registry() string {
	c.Helper()
	const password = "canary-of-a-registry-2c40"
	pair := base64.StdEncoding.EncodeToString([]byte("robot:" + password))
	file := filepath.Join(c.TempDir(), "registries.json")
	if err := os.WriteFile(file, []byte(`{"auths":{"registry.example":{"auth":"`+pair+`"}}}`), 0o600); err != nil {
		c.Fatal(err)
	}
	c.add("a password of a registry", password)
	c.add("a password of a registry, as Docker writes it", pair)
	return file
}

// logins lets people log in with a provider of OpenID Connect, in ways that work and in ways that fail.
func (c *canaries) logins() {
	c.Helper()
	idp := oidctest.New(c)
	home := c.TempDir()
	server := []string{"--addr", c.addr(0), "--identity", filepath.Join(c.dir, "g1", "operator")}
	roots := filepath.Join(home, "idp.pem")
	if err := os.WriteFile(roots, idp.Roots(), 0o600); err != nil {
		c.Fatal(err)
	}
	c.run(true, nil, append([]string{"auth", "provider", "set", "corp", "--issuer", idp.URL(), "--client-id", oidctest.ClientID, "--scope", "email",
		"--ca-cert", roots, "--rule", `viewer="ops" in claims.groups`}, server...)...)
	c.browse(idp, home)
	logins := idp.Exchanges()
	if len(logins) != 1 {
		c.Fatalf("%d logins", len(logins))
	}
	c.add("the code of a login", logins[0].Code)
	c.add("the verifier of a login", logins[0].Verifier)
	c.addJWT("the ID token of a login", logins[0].IDToken)
	c.add("the provider's access token of a login", logins[0].AccessToken)
	c.serverLogins(idp)
	c.run(true, nil, append([]string{"auth", "provider", "list", "-o", "json"}, server...)...)
	c.run(true, nil, append([]string{"auth", "token", "list", "-o", "json"}, server...)...)
	c.run(true, nil, append([]string{"audit", "list", "-o", "json"}, server...)...)
}

// addJWT adds a signed token: the whole one, and the signature, without which nobody can use the token.
func (c *canaries) addJWT(name, token string) {
	c.add(name, token)
	c.add(name+", its signature", token[strings.LastIndex(token, ".")+1:])
}

// browse logs a user in with the command and a browser.
func (c *canaries) browse(idp *oidctest.Provider, home string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	args := []string{"login", "--provider", "corp", "--no-browser", "--addr", c.addr(0), "--roots", filepath.Join(c.dir, "g1", "operator", "roots.pem")}
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+home, "NUSA_LOG_LEVEL=debug")
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.Fatal(err)
	}
	var all strings.Builder
	for lines := bufio.NewScanner(said); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if _, address, ok := strings.Cut(lines.Text(), "log in with a browser: "); ok {
			idp.Browse(address)
		}
	}
	if err := cmd.Wait(); err != nil {
		c.Fatalf("nusa %s: %v\n%s", strings.Join(args, " "), err, all.String())
	}
	c.said["login"] = all.String()
	found := 0
	err = filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if at := strings.Index(string(text), "nusa_"); at >= 0 {
			found++
			c.addToken("the access token of a login", strings.FieldsFunc(string(text)[at:], func(r rune) bool { return r == '"' || r == '\n' || r == ',' || r == ' ' })[0])
		}
		return err
	})
	if err != nil || found == 0 {
		c.Errorf("no access token is below %s: %v", home, err)
	}
}

// serverLogins sends ID tokens with known nonces to the server.
func (c *canaries) serverLogins(idp *oidctest.Provider) {
	c.Helper()
	source, err := trust.Open(trust.Options{Dir: filepath.Join(c.dir, "g1", "operator")})
	if err != nil {
		c.Fatal(err)
	}
	conn, err := grpc.NewClient(c.addr(0), source.Dial(identity.Rules{{Kind: identity.Global}}))
	if err != nil {
		c.Fatal(err)
	}
	defer conn.Close()
	const nonce, other = "canary-of-a-nonce-d19e", "canary-of-another-nonce-ee05"
	c.add("the secret of a nonce", nonce)
	c.add("the secret of another nonce", other)
	claims := idp.Claims(oidc.NonceOf(nonce))
	token := idp.Sign(claims)
	claims["sub"] = "id9"
	second := idp.Sign(claims)
	c.addJWT("an ID token", token)
	c.addJWT("an ID token for another nonce", second)
	for _, l := range []struct {
		token, nonce string
		ok           bool
	}{{token, nonce, true}, {token, nonce, false}, {second, other, false}, {second + "x", nonce, false}, {second[:40] + second, nonce, false}, {other, other, false}} {
		resp, err := nusav1.NewAuthClient(conn).Login(c.Context(), &nusav1.LoginRequest{Provider: "corp", IdToken: l.token, Nonce: l.nonce})
		if (err == nil) != l.ok {
			c.Errorf("a login with the nonce %s: %v", l.nonce, err)
		}
		if err != nil {
			c.said["a refused login with "+l.nonce[:15]] += err.Error()
			continue
		}
		c.addToken("the access token of an ID token", resp.GetSecret())
	}
}
