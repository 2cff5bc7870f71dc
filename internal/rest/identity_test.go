package rest_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/forward"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/rest"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// seen is what the handler of a call knows of its caller.
type seen struct {
	caller string
	known  bool
	local  bool
	who    string
	md     metadata.MD
	peer   string
}

// guarded is a server with identities.
type guarded struct {
	nusav1.UnimplementedJobsServer
	ca     *pkitest.CA
	source *trust.Source
	set    *rights.Set
	addr   string
	grpc   string

	mu   sync.Mutex
	last seen
}

// Get implements nusav1.JobsServer.
func (g *guarded) Get(ctx context.Context, _ *nusav1.GetJobRequest) (*nusav1.Job, error) {
	g.note(ctx)
	return &nusav1.Job{Revision: 7}, nil
}

// Watch implements nusav1.JobsServer.
func (g *guarded) Watch(_ *nusav1.GetJobRequest, s grpc.ServerStreamingServer[nusav1.Job]) error {
	g.note(s.Context())
	if err := s.Send(&nusav1.Job{Revision: 8}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (g *guarded) note(ctx context.Context) {
	id, known := trust.CallerOf(ctx)
	out := seen{caller: id.Name, known: known, local: trust.IsLocal(ctx)}
	if call := rights.Of(ctx); call != nil {
		out.who = call.Who.Name
	}
	out.md, _ = metadata.FromIncomingContext(ctx)
	if p, ok := peer.FromContext(ctx); ok {
		out.peer = p.Addr.String()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = out
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	return serveGuarded(t, pkitest.New(t), "global/g1", func() (*grpc.ClientConn, bool, error) { return nil, true, nil })
}

// serveGuarded starts the server of a member. leader says which server leads.
func serveGuarded(t *testing.T, ca *pkitest.CA, name string, leader forward.Leader) *guarded {
	t.Helper()
	g := &guarded{ca: ca}
	g.source = g.ca.Source(name)
	var err error
	if g.set, err = rights.New(nil); err != nil {
		t.Fatal(err)
	}
	gt := gate.New(gate.Options{Source: g.source, Rights: func() *rights.Set { return g.set }})
	f := forward.New(leader)
	members := gate.Split(g.source.ID(), false, false)
	s, err := serve.Open(t.Context(), serve.Options{
		Net: network.Host(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "0.0.0.0:0", HTTPTLS: g.source.Web(), Credentials: g.source.Server(members.Main), Tap: trust.Tap,
		Unary: gt.Around(f.Unary()), Stream: gt.AroundStreams(f.Stream()), Grace: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	nusav1.RegisterJobsServer(s, g)
	nusav1.RegisterAuthServer(s, nusav1.UnimplementedAuthServer{})
	if err := rest.Mount(s, rest.Options{}); err != nil {
		t.Fatal(err)
	}
	start(t, s)
	_, port, err := net.SplitHostPort(s.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	g.addr, g.grpc = "https://127.0.0.1:"+port, s.GRPCAddr()
	return g
}

// start runs a server until the end of the test.
func start(t *testing.T, s *serve.Server) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// client returns an HTTPS client with the certificate of a member, or without one.
func (g *guarded) client(t *testing.T, as string) *http.Client {
	config := &tls.Config{InsecureSkipVerify: true}
	if as != "" {
		config = g.ca.Source(as).TLS(identity.Rules{{Kind: identity.Global}}, "http/1.1")
	}
	tr := &http.Transport{TLSClientConfig: config}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// get makes a request and returns the response with its body.
func get(t *testing.T, c *http.Client, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// forged are headers by which a client claims to be another caller.
func (g *guarded) forged() []string {
	root := g.ca.ID("operator/root").String()
	var out []string
	for _, prefix := range []string{"", "Grpc-Metadata-", "Grpcgateway-", "grpc-metadata-grpc-metadata-"} {
		for name, value := range map[string]string{
			trust.CallerHeader: root, trust.LocalHeader: "1", trust.FromHeader: "10.0.0.1:1", trust.AddressHeader: "10.0.0.1", forward.Header: "1",
		} {
			out = append(out, prefix+name, value, prefix+name+"-Bin", "MQ==")
		}
	}
	return append(out, "Grpc-Metadata-Authorization", "Bearer nusa_x_y", "X-Forwarded-For", "10.0.0.1", "Forwarded", "for=10.0.0.1",
		"X-Forwarded-Client-Cert", "URI="+root, "Grpc-Timeout", "1n", "X-Http-Method-Override", "DELETE")
}

// TestNoHeaderForgesAnIdentity: whatever headers a client sends, the caller is the one of the certificate.
func TestNoHeaderForgesAnIdentity(t *testing.T) {
	g := newGuarded(t)
	for as, want := range map[string]struct {
		status int
		caller string
	}{
		"operator/jane":      {200, "jane"},
		"operator/root":      {200, "root"}, // the name alone is not the administrator of the machine
		"":                   {401, ""},
		"global/g2":          {200, "g2"}, // as on gRPC: it forwards calls, but not those of HTTP clients
		"region/a/server/s1": {403, ""},
		"region/a/agent/n1":  {403, ""},
	} {
		c := g.client(t, as)
		for _, headers := range [][]string{nil, g.forged()} {
			g.last = seen{}
			resp, body := get(t, c, g.addr+"/v1/jobs/default/api", headers...)
			if resp.StatusCode != want.status || g.last.caller != want.caller || g.last.local {
				t.Errorf("%q with %d headers: %s of %+v, want %d of %q: %s", as, len(headers)/2, resp.Status, g.last, want.status, want.caller, body)
			}
			if want.status == 401 && (resp.Header.Get("WWW-Authenticate") == "" || len(headers) == 0 && !strings.Contains(string(body), "Authorization: Bearer")) {
				t.Errorf("%q: neither WWW-Authenticate nor what to send: %s", as, body)
			}
			for key := range g.last.md {
				if strings.HasPrefix(key, "nusa-") || key == "authorization" {
					t.Errorf("%q: the handler got the metadata %s", as, key)
				}
			}
			if want.status == 200 && !strings.HasPrefix(g.last.peer, "127.0.0.1:") {
				t.Errorf("%q: the peer has the address %s", as, g.last.peer)
			}
		}
	}
}

// TestAccessToken: a token is the caller, with or without a certificate. Anything else is refused.
func TestAccessToken(t *testing.T) {
	g := newGuarded(t)
	set, made, text, err := g.set.CreateToken(rights.NewToken{
		Request: &nusav1.CreateAccessTokenRequest{Roles: []string{"viewer"}, Namespaces: []string{"pay"}, Ttl: durationpb.New(time.Hour)}, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	g.set = set
	for name, c := range map[string]struct {
		as, path, auth string
		want           int
	}{
		"its namespace":       {"", "/v1/jobs/pay/api", "Bearer " + text, 200},
		"in small letters":    {"", "/v1/jobs/pay/api", "bearer " + text, 200},
		"with a certificate":  {"operator/jane", "/v1/jobs/pay/api", "Bearer " + text, 200},
		"another namespace":   {"operator/jane", "/v1/jobs/web/api", "Bearer " + text, 403},
		"a wrong token":       {"operator/jane", "/v1/jobs/pay/api", "Bearer " + text + "x", 401},
		"another scheme":      {"operator/jane", "/v1/jobs/pay/api", "Basic " + text, 401},
		"no token":            {"", "/v1/jobs/pay/api", "Bearer ", 401},
		"a token in the path": {"", "/v1/jobs/pay/api?access_token=" + text, "", 400},
	} {
		headers := []string{"Authorization", c.auth}
		if c.auth == "" {
			headers = nil
		}
		resp, body := get(t, g.client(t, c.as), g.addr+c.path, headers...)
		if resp.StatusCode != c.want || c.want == 200 && g.last.who != "token/"+made.GetAccessor() {
			t.Errorf("%s: %s of %s, want %d: %s", name, resp.Status, g.last.who, c.want, body)
		}
		if strings.Contains(body, text) {
			t.Errorf("%s: the response has the token", name)
		}
	}
}

// TestStrangersLearnNothingOfABody: a caller whom the server does not know gets 401 for a wrong body too.
func TestStrangersLearnNothingOfABody(t *testing.T) {
	g := newGuarded(t)
	for _, c := range []struct {
		as, auth string
		want     int
	}{{"", "", 401}, {"", "Bearer nusa_x_y", 401}, {"operator/jane", "", 400}} {
		for path, wrong := range map[string]string{"/schedule": `{"requested_cpu": "two"}`, "/spare/prepare": `{"count": 1.5}`, "/v1/jobs:plan": "[[", "/v1/namespaces/a": `{"x": "` + strings.Repeat("x", 300<<10) + `"}`} {
			verb := http.MethodPost
			if strings.HasSuffix(path, "/a") {
				verb = http.MethodPut
			}
			r, err := http.NewRequestWithContext(t.Context(), verb, g.addr+path, strings.NewReader(wrong))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			if wrong == "[[" { // a job file
				r.Header.Set("Content-Type", "application/yaml")
			}
			if c.auth != "" {
				r.Header.Set("Authorization", c.auth)
			}
			resp, err := g.client(t, c.as).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.want || c.want == 401 && strings.Contains(string(body), "problems") {
				t.Errorf("%s by %q with %q: %s %s", path, c.as, c.auth, resp.Status, body)
			}
		}
	}
}

// TestStrangersHoldNoStream: a stream of submits of a caller whom the server does not know ends at once, also
// if the caller sends no line. Otherwise strangers could take the room for all streams.
func TestStrangersHoldNoStream(t *testing.T) {
	g := newGuarded(t)
	lines, never := io.Pipe()
	defer never.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.addr+"/v1/jobs:submitMany", lines)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-ndjson")
	c := g.client(t, "")
	c.Timeout = 0
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), "UNAUTHENTICATED") {
		t.Errorf("%s: %q, %v", resp.Status, body, err)
	}
}

// TestBanEndsWhatTheCertificateBegan: a ban ends a stream, and the connection's next request fails, although
// the HTTPS connection stays open.
func TestBanEndsWhatTheCertificateBegan(t *testing.T) {
	g := newGuarded(t)
	c := g.client(t, "operator/jane")
	resp, err := c.Get(g.addr + "/v1/jobs/default/api:watch")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	if !in.Scan() || !strings.Contains(in.Text(), `"8"`) {
		t.Fatalf("the stream begins with %q", in.Text())
	}
	kept := g.client(t, "operator/jane") // has one connection, whose second request needs no gRPC connection
	for range 2 {
		if resp, body := get(t, kept, g.addr+"/v1/jobs/default/api"); resp.StatusCode != 200 {
			t.Fatalf("before the ban: %s: %s", resp.Status, body)
		}
	}
	banned := errors.New("banned by a test")
	g.source.RefuseIf(func(id identity.ID, _ trust.Key) error {
		if id.Name == "jane" {
			return banned
		}
		return nil
	})
	g.source.Recheck()
	last := ""
	for in.Scan() {
		last = in.Text()
	}
	var frame struct{ Error struct{ Code, Detail string } }
	if err := json.Unmarshal([]byte(last), &frame); err != nil || frame.Error.Code == "" {
		t.Errorf("the stream ends with %q: %v", last, err)
	}
	if resp, body := get(t, c, g.addr+"/v1/jobs/default/api"); resp.StatusCode != 401 || !strings.Contains(body, "banned") {
		t.Errorf("the next request gets %s: %s", resp.Status, body)
	}
	if resp, body := get(t, kept, g.addr+"/v1/jobs/default/api"); resp.StatusCode != 401 || !strings.Contains(body, "banned") {
		t.Errorf("the next request of a connection that made unary calls gets %s: %s", resp.Status, body)
	}
	if resp, body := get(t, g.client(t, "operator/joe"), g.addr+"/v1/jobs/default/api"); resp.StatusCode != 200 {
		t.Errorf("another operator gets %s: %s", resp.Status, body)
	}
}

// TestStandbyForwards: a standby forwards the calls of HTTP clients with their identity, and a leader
// believes no header of the client.
func TestStandbyForwards(t *testing.T) {
	leader := newGuarded(t)
	source := leader.ca.Source("global/g2")
	conn, err := serve.Dial(network.Host(), leader.grpc, source.Dial(identity.GlobalServers()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	standby := serveGuarded(t, leader.ca, "global/g2", func() (*grpc.ClientConn, bool, error) { return conn, false, nil })
	for as, want := range map[string]int{"operator/jane": 200, "operator/root": 200, "": 401} {
		for _, headers := range [][]string{nil, leader.forged()} {
			leader.last = seen{}
			resp, body := get(t, standby.client(t, as), standby.addr+"/v1/jobs/default/api", headers...)
			if resp.StatusCode != want || want == 200 && "operator/"+leader.last.caller != as || leader.last.local || leader.last.who != "" && leader.last.who != as {
				t.Errorf("%q: %s of %+v: %s", as, resp.Status, leader.last, body)
			}
		}
	}
	resp, err := standby.client(t, "operator/jane").Get(standby.addr + "/v1/jobs/default/api:watch")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if in := bufio.NewScanner(resp.Body); !in.Scan() || !strings.Contains(in.Text(), `"8"`) || leader.last.caller != "jane" {
		t.Errorf("the forwarded stream of %q begins with %q", leader.last.caller, in.Text())
	}
}
