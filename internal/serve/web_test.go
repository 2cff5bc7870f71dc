package serve_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// TestHTTPIsEncryptedForOtherMachines: with an identity, an address that other machines reach serves HTTPS.
// Everybody reads /livez, members read /metrics, and a member of another federation reads nothing. On
// loopback HTTP stays plain.
func TestHTTPIsEncryptedForOtherMachines(t *testing.T) {
	ca := pkitest.New(t)
	open := func(addr string) string {
		s, err := serve.Open(t.Context(), serve.Options{Net: network.Host(), HTTPAddr: addr, HTTPTLS: ca.Source("global/g1").Web(), Grace: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		_, port, err := net.SplitHostPort(s.HTTPAddr())
		if err != nil {
			t.Fatal(err)
		}
		return "127.0.0.1:" + port
	}
	wide, local := open("0.0.0.0:0"), open("127.0.0.1:0")
	servers := identity.Rules{{Kind: identity.Global}}
	foreign := pkitest.New(t).Source("operator/jane").TLS(servers, "http/1.1")
	foreign.VerifyConnection = nil // so that the server, and not this client, refuses
	for name, c := range map[string]struct {
		config *tls.Config
		url    string
		want   int // 0: no response
	}{
		"no certificate, livez":   {&tls.Config{InsecureSkipVerify: true}, "https://" + wide + "/livez", 200},
		"no certificate, metrics": {&tls.Config{InsecureSkipVerify: true}, "https://" + wide + "/metrics", 401},
		"a member, metrics":       {ca.Source("operator/jane").TLS(servers, "http/1.1"), "https://" + wide + "/metrics", 200},
		"a foreign member, livez": {foreign, "https://" + wide + "/livez", 0},
		"an old version of TLS":   {&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, "https://" + wide + "/livez", 0},
		"no encryption":           {nil, "http://" + wide + "/livez", 400},
		"loopback":                {nil, "http://" + local + "/metrics", 200},
	} {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: c.config, DisableKeepAlives: true}, Timeout: 5 * time.Second}
		resp, err := client.Get(c.url)
		got := 0
		if err == nil {
			resp.Body.Close()
			got = resp.StatusCode
		}
		if got != c.want {
			t.Errorf("%s: %v", name, fmt.Sprint(got, ", want ", c.want, ": ", err))
		}
	}
}
