package trust_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a gRPC server that records the identity of the peer of each call.
type echo struct {
	grpc_health_v1.UnimplementedHealthServer
	addr string

	mu   sync.Mutex
	last identity.ID
}

func (e *echo) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	id, ok := trust.PeerOf(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "no identity")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = id
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (e *echo) caller() identity.ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// serve starts a gRPC server on loopback.
func serve(t *testing.T, s *trust.Source, rules identity.Rules) *echo {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{addr: lis.Addr().String()}
	g := grpc.NewServer(grpc.Creds(s.Server(rules)), grpc.ConnectionTimeout(10*time.Second))
	grpc_health_v1.RegisterHealthServer(g, e)
	var done sync.WaitGroup
	done.Go(func() { _ = g.Serve(lis) })
	t.Cleanup(func() { g.Stop(); done.Wait() })
	return e
}

// call makes one call over a new connection.
func call(t *testing.T, addr string, s *trust.Source, rules identity.Rules) error {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(s.Client(rules)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return check(t, conn)
}

func check(t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

var (
	servers = identity.Rules{{Kind: identity.Server, Region: "a"}}
	agents  = identity.Rules{{Kind: identity.Agent, Region: "a"}}
)

// TestBothEndsProveTheirIdentity is the list of attacks on a connection: what the client has,
// what it expects, and whether the call succeeds.
func TestBothEndsProveTheirIdentity(t *testing.T) {
	ca, foreign := pkitest.New(t), pkitest.New(t)
	server := ca.Source("region/a/server/s1")
	e := serve(t, server, agents)
	for name, c := range map[string]struct {
		client *trust.Source
		expect identity.Rules
		want   string // a part of the error; empty: the call succeeds
	}{
		"right":                       {ca.Source("region/a/agent/n1"), servers, ""},
		"agent of another region":     {ca.Source("region/b/agent/n1"), servers, "refuses the certificate"},
		"another kind":                {ca.Source("operator/jane"), servers, "refuses the certificate"},
		"another federation":          {foreign.Source("region/a/agent/n1"), servers, "certificate of an unknown authority"},
		"expects another region":      {ca.Source("region/a/agent/n1"), identity.Rules{{Kind: identity.Server, Region: "b"}}, "another peer was expected: the certificate names regional server s1 of region a"},
		"expects a global server":     {ca.Source("region/a/agent/n1"), identity.Rules{{Kind: identity.Global}}, "another peer was expected"},
		"expects nobody":              {ca.Source("region/a/agent/n1"), nil, "another peer was expected"},
		"no identity, not encrypted":  {nil, servers, "error reading server preface"},
		"a server's own certificate":  {server, servers, "refuses the certificate"},
		"the region's name elsewhere": {ca.Source("operator/a"), servers, "refuses the certificate"},
	} {
		err := call(t, e.addr, c.client, c.expect)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == "" && e.caller() != ca.ID("region/a/agent/n1"):
			t.Errorf("%s: the server saw %s", name, e.caller())
		case c.want != "" && (status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestAttacksBelowGRPC: connections that no client of Nusa makes are refused, and a plain
// server is not mistaken for an encrypted one.
func TestAttacksBelowGRPC(t *testing.T) {
	ca := pkitest.New(t)
	e := serve(t, ca.Source("region/a/server/s1"), agents)
	agent := ca.Issue("region/a/agent/n1")
	cert := tls.Certificate{PrivateKey: agent.Key, Leaf: agent.Chain[0], Certificate: [][]byte{agent.Chain[0].Raw, agent.Chain[1].Raw}}
	late := ca.Issue("region/a/agent/n1")
	other := tls.Certificate{PrivateKey: late.Key, Certificate: cert.Certificate} // a stolen certificate without its key
	for name, c := range map[string]*tls.Config{
		"TLS 1.2":          {MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}},
		"no protocol":      {Certificates: []tls.Certificate{cert}},
		"another protocol": {Certificates: []tls.Certificate{cert}, NextProtos: []string{"nusa-stream"}},
		"another key":      {GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &other, nil }, NextProtos: []string{"h2"}},
	} {
		c.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", e.addr, c)
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			_, err = io.ReadAll(conn) // with TLS 1.3 the client learns of the refusal when it reads
			conn.Close()
		}
		if err == nil && name != "no protocol" || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, want an error of the handshake", name, err)
		}
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	var done sync.WaitGroup
	done.Go(func() { _ = g.Serve(plain) })
	defer done.Wait()
	defer g.Stop()
	if err := call(t, plain.Addr().String(), ca.Source("region/a/agent/n1"), servers); status.Code(err) != codes.Unavailable {
		t.Errorf("a plain server: %v", err)
	}
}

// fakeClock is a clock that a test sets. Each reading advances it by step.
type fakeClock struct {
	mu   sync.Mutex
	now  time.Time
	step time.Duration
}

func (c *fakeClock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(c.step)
	return c.now
}

func (c *fakeClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// TestCertificatesEnd: an expired certificate and one of the future are refused by both ends,
// and a member notices the end of its own in time.
func TestCertificatesEnd(t *testing.T) {
	ca := pkitest.New(t)
	var mu sync.Mutex
	clock := &fakeClock{now: ca.Now}
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lockedWriter{w: &logged, mu: &mu}, nil))
	open := func(dir string) *trust.Source {
		s, err := trust.Open(trust.Options{Dir: dir, Now: clock.read, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	server, agent := open(ca.Dir("region/a/server/s1")), open(ca.Dir("region/a/agent/n1"))
	e := serve(t, server, agents)
	for _, c := range []struct {
		at    time.Duration
		call  string
		ready error
	}{
		{0, "", nil}, {21 * time.Hour, "", nil}, {22 * time.Hour, "", trust.ErrEnding}, {24*time.Hour - time.Second, "", trust.ErrEnding},
		{24*time.Hour + time.Second, "refuses the certificate", trust.ErrEnded}, {72*time.Hour + time.Second, "expired certificate", trust.ErrEnded},
		{-10 * time.Minute, "certificate of the future", nil},
	} {
		clock.set(ca.Now.Add(c.at))
		err := call(t, e.addr, agent, servers)
		if (err == nil) != (c.call == "") || err != nil && !strings.Contains(err.Error(), c.call) {
			t.Errorf("after %s: %v, want %q", c.at, err, c.call)
		}
		if err := agent.Ready(); !errors.Is(err, c.ready) {
			t.Errorf("after %s: ready: %v, want %v", c.at, err, c.ready)
		}
	}
	mu.Lock()
	if n := strings.Count(logged.String(), "the certificate of this program has expired"); n != 1 {
		t.Errorf("%d lines about the agent's own certificate:\n%s", n, logged.String())
	}
	mu.Unlock()
	if _, err := trust.Open(trust.Options{Dir: ca.Dir("region/a/agent/n1"), Now: func() time.Time { return ca.Now.Add(25 * time.Hour) }}); !errors.Is(err, pki.ErrExpired) {
		t.Errorf("a start with an expired certificate: %v", err)
	}
}

// TestFilesChangeWhileConnectionsLive: a member uses new files at the next handshake. Damaged
// and half-written files have no effect, and connections that exist continue.
func TestFilesChangeWhileConnectionsLive(t *testing.T) {
	ca := pkitest.New(t)
	var mu sync.Mutex
	clock := &fakeClock{now: ca.Now, step: 2 * time.Second} // each handshake looks at the files
	var logged bytes.Buffer
	dir := ca.Dir("region/a/server/s1")
	server, err := trust.Open(trust.Options{Dir: dir, Now: clock.read, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: &logged, mu: &mu}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	e := serve(t, server, agents)
	agent := ca.Source("region/a/agent/n1")
	old, err := grpc.NewClient(e.addr, grpc.WithTransportCredentials(agent.Client(servers)))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := check(t, old); err != nil {
		t.Fatal(err)
	}
	first := serial(t, e.addr)

	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := ca.Issue("region/a/server/s1")
	write("cert.pem", string(pki.EncodeCertificates(next.Chain...))) // the key is still the old one
	if got := serial(t, e.addr); got != first {
		t.Error("a certificate without its key is in use")
	}
	write("cert.pem", "damaged")
	if got := serial(t, e.addr); got != first {
		t.Error("a damaged file is in use")
	}
	if err := trust.Write(dir, ca.Issue("region/a/server/s2")); err != nil {
		t.Fatal(err)
	}
	if got := serial(t, e.addr); got != first {
		t.Error("another identity is in use without a restart")
	}
	if err := trust.Write(dir, next); err != nil {
		t.Fatal(err)
	}
	if got := serial(t, e.addr); got != next.Chain[0].SerialNumber.String() {
		t.Errorf("certificate %s is in use, not the new one", got)
	}
	if err := check(t, old); err != nil {
		t.Errorf("a connection from before the change: %v", err)
	}
	if err := call(t, e.addr, agent, servers); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	// The server stops to trust the agent's root.
	foreign := pkitest.New(t)
	write("roots.pem", string(pki.EncodeCertificates(foreign.Root.Cert)))
	if err := call(t, e.addr, agent, servers); err != nil {
		t.Errorf("roots that do not verify the own certificate took effect: %v", err)
	}
	if err := server.Ready(); !errors.Is(err, trust.ErrUnused) || !errors.Is(err, pki.ErrUnknownCA) {
		t.Errorf("with roots that have no effect: ready: %v", err)
	}
	write("roots.pem", string(pki.EncodeCertificates(foreign.Root.Cert, ca.Root.Cert)))
	if err := server.Ready(); err != nil {
		t.Errorf("with both roots: ready: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"the key belongs to another certificate", "is no PEM block", "restart to use another identity", "a changed identity is in use", "not issued by a root"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, logged.String())
		}
	}
}

// TestClockSetBack: a member whose clock was set back still notices changed files.
func TestClockSetBack(t *testing.T) {
	ca := pkitest.New(t)
	clock := &fakeClock{now: ca.Now.Add(20 * time.Hour)}
	dir := ca.Dir("region/a/server/s1")
	server, err := trust.Open(trust.Options{Dir: dir, Now: clock.read})
	if err != nil {
		t.Fatal(err)
	}
	e := serve(t, server, agents)
	clock.set(ca.Now)
	next := ca.Issue("region/a/server/s1")
	if err := trust.Write(dir, next); err != nil {
		t.Fatal(err)
	}
	if got := serial(t, e.addr); got != next.Chain[0].SerialNumber.String() {
		t.Error("the changed files are not in use")
	}
}

type lockedWriter struct {
	w  io.Writer
	mu *sync.Mutex
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// serial returns the serial number of the certificate that a server shows.
func serial(t *testing.T, addr string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestFolders(t *testing.T) {
	ca := pkitest.New(t)
	damage := func(change func(dir string) error) string {
		dir := ca.Dir("region/a/agent/n1")
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, c := range map[string]struct {
		dir  string
		want string
	}{
		"nothing there":  {filepath.Join(t.TempDir(), "x"), "does not exist: `nusa ca issue` creates it"},
		"no key":         {damage(func(dir string) error { return os.Remove(filepath.Join(dir, "key.pem")) }), "key.pem does not exist"},
		"a readable key": {damage(func(dir string) error { return os.Chmod(filepath.Join(dir, "key.pem"), 0o644) }), "run chmod 600"},
		"a large file":   {damage(func(dir string) error { return os.Truncate(filepath.Join(dir, "roots.pem"), 1<<20) }), "at most 65536"},
		"an empty file":  {damage(func(dir string) error { return os.Truncate(filepath.Join(dir, "roots.pem"), 0) }), "the text is empty"},
	} {
		if _, err := trust.Open(trust.Options{Dir: c.dir}); !errors.Is(err, trust.ErrFolder) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	info, err := os.Stat(filepath.Join(ca.Dir("region/a/agent/n1"), "key.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file has mode %v, %v", info.Mode(), err)
	}
	s := ca.Source("region/a/agent/n1")
	if err := s.Require("nusa agent", agents); err != nil || s.ID() != ca.ID("region/a/agent/n1") {
		t.Errorf("%v, %v", s.ID(), err)
	}
	if err := s.Require("nusa regional", servers); err == nil || !strings.Contains(err.Error(), "nusa regional needs the identity of a regional server of region a, not of agent n1 of region a") {
		t.Error(err)
	}
}

// TestWithoutIdentity: a nil Source stands for connections as they were before identities.
func TestWithoutIdentity(t *testing.T) {
	var none *trust.Source
	if none.Server(agents) != nil || none.Client(agents).Info() != insecure.NewCredentials().Info() {
		t.Error("a nil Source encrypts")
	}
	if none.ID() != (identity.ID{}) || none.Ready() != nil || none.Require("x", nil) != nil {
		t.Error("a nil Source has an identity")
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if c, err := none.Secure(t.Context(), near, agents); c != near || err != nil {
		t.Errorf("%v, %v", c, err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if none.Listener(lis, agents) != lis {
		t.Error("a nil Source changes a listener")
	}
}
