package member_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is an enroll.Store in memory.
type memory struct {
	mu      sync.Mutex
	values  map[string][]byte
	version map[string]uint64
	last    uint64
	// entries are the entries of the audit trail.
	entries []string
}

func (m *memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[key], m.version[key], nil
}

func (m *memory) List(_ context.Context, prefix string, visit func(string, []byte, uint64) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, value := range m.values {
		if strings.HasPrefix(key, prefix) {
			if err := visit(key, value, m.version[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *memory) Change(_ context.Context, c enroll.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, check := range c.Checks {
		if m.version[check.Key] != check.Version {
			return enroll.ErrChanged
		}
	}
	if c.Audit != nil {
		m.entries = append(m.entries, c.Audit.Verb+" "+c.Audit.Kind+" "+c.Audit.Name)
	}
	for _, p := range c.Puts {
		m.last++
		m.values[p.Key], m.version[p.Key] = p.Value, m.last
	}
	for _, key := range c.Deletes {
		delete(m.values, key)
		delete(m.version, key)
	}
	return nil
}

// tier is a server that gives certificates.
type tier struct {
	*enroll.Server
	t     *testing.T
	ca    *pkitest.CA
	store *memory
	addr  string

	mu  sync.Mutex
	off time.Duration // the clock of the server is so far ahead
	log strings.Builder
}

func (x *tier) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.log.Write(b)
}

func (x *tier) lines() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.log.String()
}

func (x *tier) ahead(by time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.off = by
}

func (x *tier) now() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return time.Now().Add(x.off)
}

// start serves the service Identity as a member of a federation, with its authority.
func start(t *testing.T, ca *pkitest.CA, path string) *tier {
	t.Helper()
	source, authority := ca.Source(path), ca.Root
	region := source.ID().Region
	if region != "" {
		authority = ca.Region(region)
	}
	return serve(t, ca, source, authority)
}

// serve is like start, for a server with this identity and this authority.
func serve(t *testing.T, ca *pkitest.CA, source *trust.Source, authority *pki.Authority) *tier {
	t.Helper()
	region := source.ID().Region
	x := &tier{t: t, ca: ca, store: &memory{values: map[string][]byte{}, version: map[string]uint64{}}}
	x.Server = &enroll.Server{
		Source: source, Region: region, Now: x.now, Log: slog.New(slog.NewTextHandler(x, nil)),
		Store:  func() (enroll.Store, error) { return x.store, nil },
		Issuer: func() (*enroll.Issuer, error) { return &enroll.Issuer{Authority: authority, Now: x.now}, nil },
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(source.Server(gate.Listener(source.ID()))), grpc.ChainUnaryInterceptor(gate.New(gate.Options{Source: source}).Around()...))
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	x.Register(g)
	var done sync.WaitGroup
	done.Go(func() { _ = g.Serve(lis) })
	t.Cleanup(func() { g.Stop(); done.Wait() })
	x.addr = lis.Addr().String()
	return x
}

// token makes a token.
func (x *tier) token(req *nusav1.CreateTokenRequest) join.Token {
	x.t.Helper()
	out, err := x.CreateToken(x.t.Context(), req)
	if err != nil {
		x.t.Fatal(err)
	}
	token, err := join.Parse(out.GetToken())
	if err != nil {
		x.t.Fatal(err)
	}
	return token
}

func (x *tier) write(key string, m proto.Message) {
	x.t.Helper()
	value, err := proto.Marshal(m)
	if err == nil {
		err = x.store.Change(x.t.Context(), enroll.Change{Puts: []enroll.Put{{Key: key, Value: value}}})
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// config returns the configuration of a member with a new folder.
func (x *tier) config(path string, token join.Token) member.Config {
	id := x.ca.ID(path)
	id.Federation = ""
	return member.Config{
		Dir: filepath.Join(x.t.TempDir(), "identity"), ID: id, Servers: []string{x.addr},
		Token: func() (join.Token, error) { return token, nil }, Log: slog.New(slog.DiscardHandler),
	}
}

// ensure calls member.Ensure. A member that gets no final answer gives up soon.
func (x *tier) ensure(c member.Config) error {
	ctx, cancel := context.WithTimeout(x.t.Context(), 20*time.Second)
	defer cancel()
	return member.Ensure(ctx, c)
}

func agents(change func(*nusav1.CreateTokenRequest)) *nusav1.CreateTokenRequest {
	req := &nusav1.CreateTokenRequest{Role: "agent", Region: "a", Name: "gpu-*", Pool: "gpu"}
	if change != nil {
		change(req)
	}
	return req
}

// TestJoin: each row is a new member that joins or is refused, and what the log of the server
// must say about a refusal.
func TestJoin(t *testing.T) {
	ca, other := pkitest.New(t), pkitest.New(t)
	foreign := start(t, other, "region/a/server/s1")
	for name, c := range map[string]struct {
		token   *nusav1.CreateTokenRequest
		member  string
		prepare func(*tier, *member.Config)
		want    string
	}{
		"an agent":         {agents(nil), "region/a/agent/gpu-1", nil, ""},
		"the same pool":    {agents(nil), "region/a/agent/gpu-1", func(_ *tier, c *member.Config) { c.Pool = "gpu" }, ""},
		"another pool":     {agents(nil), "region/a/agent/gpu-1", func(_ *tier, c *member.Config) { c.Pool = "default" }, "is for pool gpu, not for pool default"},
		"another name":     {agents(nil), "region/a/agent/cpu-1", nil, `is for names like "gpu-*"`},
		"another region":   {agents(nil), "region/b/agent/gpu-1", nil, "another peer was expected"},
		"another role":     {agents(nil), "region/a/server/gpu-1", nil, "another peer was expected"},
		"an expired token": {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) { x.ahead(25 * time.Hour) }, "ended at"},
		"a future token":   {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) { x.ahead(-time.Hour) }, "check the clocks"},
		"a revoked token":  {agents(nil), "region/a/agent/gpu-1", revoke, "is revoked"},
		"a used token":     {agents(nil), "region/a/agent/gpu-2", func(x *tier, c *member.Config) { x.other(c, "region/a/agent/gpu-1") }, "is used up"},
		"a taken name":     {agents(func(r *nusav1.CreateTokenRequest) { r.Uses = 2 }), "region/a/agent/gpu-1", func(x *tier, c *member.Config) { x.other(c, "region/a/agent/gpu-1") }, "another machine has the name"},
		"a banned agent":   {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) { x.ban("agent", "a", "gpu-1") }, "is banned (stolen, since"},
		"another ban":      {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) { x.ban("server", "a", "gpu-1"); x.ban("agent", "b", "gpu-1") }, ""},
		"a token elsewhere": {agents(nil), "region/a/agent/gpu-1", func(_ *tier, c *member.Config) {
			c.Token = func() (join.Token, error) { return foreign.token(agents(nil)), nil }
		}, "not one of the federation that gave the token"},
		"an unknown token": {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) {
			x.store.mu.Lock()
			defer x.store.mu.Unlock()
			clear(x.store.values)
			clear(x.store.version)
		}, "is not known here"},
		"a registered node": {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) { x.policy("token+registered"); x.register("gpu-1", "127.0.0.1") }, ""},
		"not registered":    {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) { x.policy("token+registered") }, "is not registered"},
		"another address":   {agents(nil), "region/a/agent/gpu-1", func(x *tier, _ *member.Config) { x.register("gpu-1", "10.0.0.1") }, "joins from 127.0.0.1, and is registered with 10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, ca, "region/a/server/s1")
			config := x.config(c.member, x.token(c.token))
			if c.prepare != nil {
				c.prepare(x, &config)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // some refusals are not final
			defer cancel()
			err := member.Ensure(ctx, config)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			source, openErr := trust.Open(trust.Options{Dir: config.Dir})
			if err != nil {
				if openErr == nil {
					t.Error("a refused member has an identity")
				}
				return
			}
			if openErr != nil || source.ID() != ca.ID(c.member) || member.Pool(config.Dir) != "gpu" {
				t.Errorf("%v, %v, pool %q", openErr, source.ID(), member.Pool(config.Dir))
			}
			if err := x.ensure(config); err != nil {
				t.Errorf("the second start: %v", err)
			}
		})
	}
}

func revoke(x *tier, c *member.Config) {
	token, _ := c.Token()
	if _, err := x.RevokeToken(x.t.Context(), &nusav1.RevokeTokenRequest{Id: token.ID()}); err != nil {
		x.t.Fatal(err)
	}
}

// other lets another machine join with the token of a member.
func (x *tier) other(c *member.Config, path string) {
	x.t.Helper()
	token, _ := c.Token()
	if err := x.ensure(x.config(path, token)); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tier) ban(role, region, name string) {
	bans := &nusav1.BanList{}
	if value, version, _ := x.store.Get(x.t.Context(), "identity/bans"); version > 0 {
		if err := proto.Unmarshal(value, bans); err != nil {
			x.t.Fatal(err)
		}
	}
	bans.Bans = append(bans.Bans, &nusav1.MemberBan{Role: role, Region: region, Name: name, Reason: "stolen"})
	x.write("identity/bans", bans)
}

func (x *tier) policy(text string) { x.write("identity/policy", &nusav1.JoinPolicy{Policy: text}) }

func (x *tier) register(name, address string) {
	x.write("identity/node/"+name, &nusav1.RegisteredNode{Name: name, Address: address})
}

// TestOperatorJoins: the token names the operator. A machine that joins later takes the name over, and
// the earlier one renews no more.
func TestOperatorJoins(t *testing.T) {
	ca := pkitest.New(t)
	x := start(t, ca, "global/g1")
	jane := func() member.Config {
		c := x.config("operator/unnamed", x.token(&nusav1.CreateTokenRequest{Role: "operator", Name: "jane"}))
		c.NameOfToken = true
		if err := x.ensure(c); err != nil {
			t.Fatal(err)
		}
		source, err := trust.Open(trust.Options{Dir: c.Dir})
		if err != nil || source.ID() != ca.ID("operator/jane") {
			t.Fatalf("%v, %v", source.ID(), err)
		}
		return c
	}
	first := jane()
	if err := first.RenewNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := jane()
	if err := first.RenewNow(t.Context()); err == nil || !strings.Contains(err.Error(), "another machine has the name of operator jane") {
		t.Errorf("the earlier machine renews: %v", err)
	}
	if err := second.RenewNow(t.Context()); err != nil {
		t.Error(err)
	}
	token, _ := second.Token()
	thief := x.config("operator/unnamed", token)
	thief.NameOfToken = true
	if err := x.ensure(thief); err == nil || !strings.Contains(err.Error(), "is used up") {
		t.Errorf("a used token: %v", err)
	}
	unnamed := x.config("operator/unnamed", x.token(&nusav1.CreateTokenRequest{Role: "operator", Name: "jane"}))
	if err := x.ensure(unnamed); err == nil || !strings.Contains(err.Error(), "not for operator unnamed") {
		t.Errorf("another name: %v", err)
	}
}

// TestServerJoins: a regional server gets an authority of its region. With it, it renews its
// own certificate while no global server answers.
func TestServerJoins(t *testing.T) {
	ca := pkitest.New(t)
	x := start(t, ca, "global/g1")
	c := x.config("region/a/server/s1", x.token(&nusav1.CreateTokenRequest{Role: "server", Region: "a"}))
	if err := x.ensure(c); err != nil {
		t.Fatal(err)
	}
	a, err := enroll.ReadAuthority(c.Dir)
	if err != nil || a.ID.Region != "a" || a.ID.Kind != identity.Region {
		t.Fatalf("%v, %v", a, err)
	}
	if _, err := c.Renew()(t.Context(), member.Renewal{}); err != nil {
		t.Fatal(err)
	}
	if e := x.store.entries; len(e) != 3 || e[1] != "join member region/a/server/s1" || e[2] != "renew member region/a/server/s1" {
		t.Errorf("the audit trail has %q", e)
	}
	c.Servers = []string{"127.0.0.1:1"}
	creds, err := c.Renew()(t.Context(), member.Renewal{})
	if err != nil || len(creds.Chain) != 2 {
		t.Fatalf("without the global tier: %d certificates, %v", len(creds.Chain), err)
	}
	if id, err := pki.Verify(creds.Chain, creds.Roots, time.Now()); err != nil || id != ca.ID("region/a/server/s1") {
		t.Errorf("%v, %v", id, err)
	}
	c.Servers = []string{x.addr}
	x.ban("server", "a", "s1")
	if creds, err := c.Renew()(t.Context(), member.Renewal{}); err == nil || !strings.Contains(err.Error(), "is banned") {
		t.Errorf("a banned server renews: %v, %v", creds, err)
	}
}

// TestRenewal: a certificate is renewed without a token, also after its end and within the grace,
// for the same key. Nobody else can renew it.
func TestRenewal(t *testing.T) {
	ca := pkitest.New(t)
	x := start(t, ca, "region/a/server/s1")
	c := x.config("region/a/agent/gpu-1", x.token(agents(nil)))
	if err := x.ensure(c); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(c.Dir, trust.CertFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, step := range map[string]struct {
		ahead time.Duration
		want  string
	}{
		"valid":            {0, ""},
		"off for a week":   {7 * 24 * time.Hour, ""},
		"off for too long": {32 * 24 * time.Hour, "could be renewed for 720h0m0s"},
	} {
		x.ahead(step.ahead)
		creds, err := c.Renew()(t.Context(), member.Renewal{})
		switch {
		case step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)):
			t.Errorf("%s: %v, want %q", name, err, step.want)
		case step.want == "" && step.ahead == 0 && (err != nil || creds.Chain[0].NotAfter.Before(time.Now())):
			t.Errorf("%s: %v", name, err)
		case step.want == "" && step.ahead > 0 && (err == nil || !strings.Contains(err.Error(), "certificate of the future")):
			// The server has renewed the certificate; the clock of this process is behind.
			t.Errorf("%s: %v", name, err)
		}
	}
	x.ahead(0)
	// A machine with the certificate, but without its key.
	thief := x.config("region/a/agent/gpu-1", join.Token{})
	stolen := ca.Issue("region/a/agent/gpu-1")
	if err := trust.Write(thief.Dir, stolen); err != nil {
		t.Fatal(err)
	}
	if _, err := thief.Renew()(t.Context(), member.Renewal{}); err == nil || !strings.Contains(err.Error(), "another machine has the name") {
		t.Errorf("another key of the same name: %v", err)
	}
	x.ban("agent", "a", "gpu-1")
	if _, err := c.Renew()(t.Context(), member.Renewal{}); err == nil || !strings.Contains(err.Error(), "is banned") {
		t.Errorf("a banned agent renews: %v", err)
	}
	if again, err := os.ReadFile(filepath.Join(c.Dir, trust.CertFile)); err != nil || !slices.Equal(first, again) {
		t.Error("a renewal that failed has changed the certificate")
	}
}

// TestKeep: Keep renews a certificate before its end, and stops with its context.
func TestKeep(t *testing.T) {
	ca := pkitest.New(t)
	dir := t.TempDir()
	ca.Now = time.Now().Add(-23 * time.Hour) // more than 80 % of the life of an agent's certificate
	if err := trust.Write(dir, ca.Issue("region/a/agent/n1")); err != nil {
		t.Fatal(err)
	}
	source, err := trust.Open(trust.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err = member.Keep(ctx, source, func(context.Context) (pki.Credentials, error) {
		calls++
		defer cancel()
		ca.Now = time.Now()
		return ca.Issue("region/a/agent/n1"), nil
	}, slog.New(slog.DiscardHandler))
	if err != nil || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if next, err := trust.Open(trust.Options{Dir: dir}); err != nil || next.Ready() != nil {
		t.Errorf("%v", err)
	}
}

// TestFixedPool: the record of an agent has the pool of its token or its registration, also after a
// renewal. An agent whose token is for all pools may change its pool.
func TestFixedPool(t *testing.T) {
	ca := pkitest.New(t)
	for name, c := range map[string]struct {
		token, node, chosen, want string
	}{
		"by the token":        {token: "gpu", want: "gpu"},
		"by the registration": {node: "gpu", want: "gpu"},
		"by the agent":        {chosen: "gpu"},
		"by nobody":           {},
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, ca, "region/a/server/s1")
			if c.node != "" {
				x.write("identity/node/gpu-1", &nusav1.RegisteredNode{Name: "gpu-1", Pool: c.node})
			}
			config := x.config("region/a/agent/gpu-1", x.token(agents(func(r *nusav1.CreateTokenRequest) { r.Pool = c.token })))
			config.Pool = c.chosen
			if err := x.ensure(config); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				value, _, _ := x.store.Get(t.Context(), enroll.AgentKey("a", "gpu-1"))
				if pool, err := enroll.PoolOf(value); err != nil || pool != c.want {
					t.Errorf("pool %q, want %q, %v", pool, c.want, err)
				}
				if _, err := config.Renew()(t.Context(), member.Renewal{}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestBans: a ban holds for the member that it names until it ends.
func TestBans(t *testing.T) {
	ca := pkitest.New(t)
	x := start(t, ca, "region/a/server/s1")
	refused := func() bool {
		value, _, _ := x.store.Get(t.Context(), enroll.BansKey)
		bans, err := enroll.ReadBans(value)
		if err != nil || bans.Refuses(ca.ID("region/a/agent/n2")) != nil {
			t.Errorf("%v, %v", err, bans)
		}
		return bans.Refuses(ca.ID("region/a/agent/n1")) != nil
	}
	if refused() {
		t.Error("a member is banned at first")
	}
	for range 2 {
		if _, err := x.Members().Ban(t.Context(), &nusav1.BanRequest{Role: "agent", Region: "a", Name: "n1", Reason: "stolen"}); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := x.Members().List(t.Context(), &nusav1.ListMembersRequest{}); err != nil || !refused() || len(list.GetBans()) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	for _, want := range []bool{true, false} {
		out, err := x.Members().Unban(t.Context(), &nusav1.UnbanRequest{Role: "agent", Region: "a", Name: "n1"})
		if err != nil || out.GetRemoved() != want || refused() {
			t.Errorf("%v, %v", out, err)
		}
	}
	for _, bad := range []*nusav1.BanRequest{{Region: "a", Name: "n1"}, {Role: "server", Region: "a", Name: "s1"}, {Role: "agent", Region: "b", Name: "n1"}, {Role: "agent", Region: "a", Name: "../n1"}, {Role: "agent", Region: "a", Name: "n1", Reason: strings.Repeat("x", 65)}} {
		if _, err := x.Members().Ban(t.Context(), bad); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}

// TestFailuresAreBounded: after some refusals an address waits.
func TestFailuresAreBounded(t *testing.T) {
	x := start(t, pkitest.New(t), "region/a/server/s1")
	token := x.token(agents(nil))
	for range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_ = member.Ensure(ctx, x.config("region/a/agent/cpu-1", token))
		cancel()
	}
	n := strings.Count(x.lines(), "a join is refused")
	if n < 10 || n > 12 {
		t.Errorf("%d refusals were answered", n)
	}
	if strings.Contains(x.lines(), strings.Split(token.Reveal(), ".")[2]) {
		t.Error("the log has the secret of a token")
	}
}

// TestTokens: tokens are bounded, and only of this tier.
func TestTokens(t *testing.T) {
	ca := pkitest.New(t)
	region, global := start(t, ca, "region/a/server/s1"), start(t, ca, "global/g1")
	for name, c := range map[string]struct {
		at   *tier
		req  *nusav1.CreateTokenRequest
		want string
	}{
		"no role":               {region, &nusav1.CreateTokenRequest{Region: "a"}, `role "": give agent, server or operator`},
		"operator":              {global, &nusav1.CreateTokenRequest{Role: "operator", Region: "a", Name: "jane"}, "for no region"},
		"any operator":          {global, &nusav1.CreateTokenRequest{Role: "operator"}, "for one name"},
		"operator at a region":  {region, &nusav1.CreateTokenRequest{Role: "operator", Name: "jane"}, "ask a global server"},
		"a server at a region":  {region, &nusav1.CreateTokenRequest{Role: "server", Region: "a"}, "ask a global server"},
		"another region":        {region, &nusav1.CreateTokenRequest{Role: "agent", Region: "b"}, "this is a server of region a"},
		"a long life":           {region, agents(func(r *nusav1.CreateTokenRequest) { r.Ttl = durationpb.New(366 * 24 * time.Hour) }), "a life of"},
		"too many uses":         {region, agents(func(r *nusav1.CreateTokenRequest) { r.Uses = 1_000_000 }), "uses, allowed are"},
		"a pool of servers":     {global, &nusav1.CreateTokenRequest{Role: "server", Region: "a", Pool: "gpu"}, "only tokens for agents have a pool"},
		"a path as a region":    {global, &nusav1.CreateTokenRequest{Role: "server", Region: "a/../b"}, "not a name of a region"},
		"no region, of servers": {global, &nusav1.CreateTokenRequest{Role: "server"}, "not a name of a region"},
	} {
		if _, err := c.at.CreateToken(t.Context(), c.req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	token := region.token(agents(nil))
	list, err := region.ListTokens(t.Context(), &nusav1.ListTokensRequest{})
	if err != nil || len(list.GetTokens()) != 1 || list.GetTokens()[0].GetId() != token.ID() || strings.Contains(list.String(), strings.Split(token.Reveal(), ".")[2]) {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := region.RevokeToken(t.Context(), &nusav1.RevokeTokenRequest{Id: "00000000"}); err == nil || !strings.Contains(err.Error(), "no join token has the id") {
		t.Errorf("an unknown token: %v", err)
	}
	if _, err := region.RevokeToken(t.Context(), &nusav1.RevokeTokenRequest{Id: token.ID()}); err != nil {
		t.Error(err)
	}
	if want := []string{"create join token " + token.ID(), "revoke join token " + token.ID()}; !slices.Equal(region.store.entries, want) {
		t.Errorf("the audit trail has %q, want %q", region.store.entries, want)
	}
}
