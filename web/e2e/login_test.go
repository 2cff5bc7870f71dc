//go:build integration

package e2e_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/network"
	server "github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/weblogin"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/oidc/oidctest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// globals starts two global servers with identities. It returns the addresses of their pages, with TLS, and a
// connection of an administrator.
func globals(t *testing.T) (pages [2]string, admin *grpc.ClientConn) {
	t.Helper()
	if browser == nil {
		t.Skip("chromium is not installed")
	}
	port, dir, mem := freeport.Reserve(t, 4), t.TempDir(), store.NewMemory()
	for i := range pages {
		listen, ready, ended := fmt.Sprintf("127.0.0.1:%d", port+2*i), make(chan struct{}), make(chan error, 1)
		pages[i] = fmt.Sprintf("https://127.0.0.1:%d", port+2*i+1)
		client := mem.Client()
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			ended <- global.Run(ctx, global.Config{
				Name: fmt.Sprintf("g%d", i+1), GRPCAddr: listen, HTTPAddr: fmt.Sprintf("0.0.0.0:%d", port+2*i+1), Store: client, Logger: slog.New(slog.DiscardHandler),
				Secure: &global.Secure{Dir: filepath.Join(dir, fmt.Sprint(i)), OperatorDir: filepath.Join(dir, "operator")},
				Ready:  func(global.Addresses) { close(ready) },
			})
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			client.Close()
		})
		select {
		case <-ready:
		case <-time.After(patience):
			t.Fatal("the server is not ready")
		}
	}
	source, err := trust.Open(trust.Options{Dir: filepath.Join(dir, "operator")})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := server.Dial(network.Host(), fmt.Sprintf("127.0.0.1:%d", port), source.Dial(identity.GlobalServers()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pages, conn
}

// TestLoginWithProvider: a user logs in with a provider, at the active server and at another one that forwards the login,
// comes back to the view of before, and logs out.
// A user without a role, and a link that some page has made, get no token.
func TestLoginWithProvider(t *testing.T) {
	pages, conn := globals(t)
	admin := nusav1.NewAuthClient(conn)
	idp := oidctest.New(t)
	if _, err := admin.SetProvider(t.Context(), &nusav1.SetProviderRequest{Provider: idp.Stored()}); err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		idp.Allow(page + weblogin.Done)
	}
	for i, address := range pages {
		p := open(t, "about:blank", desk)
		p.host = address[len("https://"):]
		p.ignore(idp.URL()) // the only other server
		p.ignore("status of 401")
		if _, err := chromedp.Call(p.ctx, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true}); err != nil {
			t.Fatal(err)
		}
		p.navigate(address + "/ui/jobs?search=x")
		p.see("Log in to Nusa")
		p.see("Log in with corp")
		if i == 0 {
			p.axe()
			p.shot("login")
			p.ignore("status of 403")
			idp.User = "id2"
			p.click("button", "Log in with corp")
			p.see("user/id2@corp has no role")
			idp.User = "id1"
			p.navigate(address + weblogin.Done + "?state=x&code=y&error_description=Call+me")
			p.see("not the answer to a login that this browser began here")
			if got := eval[string](p, "location.href"); got != address+"/ui/" {
				t.Errorf("the address is %s", got)
			}
			p.navigate(address + "/ui/jobs?search=x")
		}
		p.click("button", "Log in with corp")
		p.wait("location.href === '" + address + "/ui/jobs?search=x' && sessionStorage.getItem('nusa.token') && !document.querySelector('.login')")
		p.see("No job matches.")
		if got := eval[string](p, "document.cookie"); got != "" {
			t.Errorf("scripts see the cookie %s", got)
		}
		token := eval[string](p, "sessionStorage.getItem('nusa.token')")
		p.click("button", "Log out")
		p.see("You are logged out of this tab.")
		if got := eval[int](p, "(async () => { for (let s = 200, end = Date.now() + 60000; ; await new Promise(r => setTimeout(r, 20))) { s = (await fetch('/v1/regions', {headers: {Authorization: 'Bearer "+token+"'}})).status; if (s === 401 || Date.now() > end) return s } })()"); got != 401 {
			t.Errorf("after the logout the server answers %d to the token", got)
		}
		if text := p.text(); strings.Contains(text, "has not revoked") {
			t.Error(text)
		}
	}
}
