package login

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	goidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/security/oidc"
)

// callbackPath is where the provider sends the browser after the login.
const callbackPath = "/callback"

// answer is what the browser brings back.
type answer struct {
	code string
	err  error
}

// browser lets the user log in with a browser on this machine. The provider sends the browser back to a
// port of this machine, with a code that only this process can use (PKCE).
func (f *flow) browser(ctx context.Context) (idToken, nonce string, err error) {
	lis, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(f.o.port))))
	if err != nil {
		return "", "", fmt.Errorf("--callback-port: %w", err)
	}
	f.config.RedirectURL = "http://" + lis.Addr().String() + callbackPath
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	nonce = rand.Text()
	code, err := f.code(ctx, lis, state, f.config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), goidc.Nonce(oidc.NonceOf(nonce))))
	if err != nil {
		return "", "", err
	}
	token, err := f.config.Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return "", "", err
	}
	idToken, err = idTokenOf(token)
	return idToken, nonce, err
}

// code waits until the browser brings the code. It closes the listener.
func (f *flow) code(ctx context.Context, lis net.Listener, state, address string) (string, error) {
	answers := make(chan answer, 1)
	server := &http.Server{Handler: callback(state, answers), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 32 << 10}
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // for the page that the user sees
		defer cancel()
		if server.Shutdown(end) != nil {
			server.Close()
		}
		<-served
	}()
	f.c.Warn("log in with a browser: %s", address)
	if !f.o.noBrowser {
		cli.OpenBrowser(ctx, address)
	}
	select {
	case a := <-answers:
		return a.code, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// callback serves the address to which the provider sends the browser. Other processes of this machine
// do not know the state, so they cannot end the login.
func callback(state string, answers chan<- answer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+callbackPath, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			http.Error(w, "This is not the answer to the login that nusa waits for.", http.StatusBadRequest)
			return
		}
		a := answer{code: q.Get("code")}
		text := "You are logged in. You may close this window."
		if fault := q.Get("error"); fault != "" || a.code == "" {
			a.err = errors.New("the provider says: " + term.OneLine(fault+" "+q.Get("error_description")))
			text = "The login has failed. The terminal says why."
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, text+"\n") // the login does not depend on the page
		select {
		case answers <- a:
		default: // the first answer counts
		}
	})
	return mux
}
