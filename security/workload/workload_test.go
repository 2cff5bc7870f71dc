package workload_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
	"github.com/nusa-scheduler/nusa/security/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var agent = identity.ID{Kind: identity.Agent, Region: "a", Name: "n1"}

// config returns the configuration of agent n1 of region a, whose log goes to out.
func (f *fake) config(out io.Writer) workload.Config {
	return workload.Config{
		Socket: f.socket(), ID: agent, Dir: f.t.TempDir() + "/identity/workload", Wait: 30 * time.Second,
		Log: slog.New(slog.NewTextHandler(out, nil)),
	}
}

// run runs workload.Run until the test ends.
func run(t *testing.T, c workload.Config) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- workload.Run(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// open opens the folder. Each look at the credentials reads the files, because its clock is fast.
func open(t *testing.T, dir string) *trust.Source {
	t.Helper()
	var mu sync.Mutex
	now := time.Now()
	source, err := trust.Open(trust.Options{Dir: dir, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Second)
		return now
	}})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range wait.Ticks(ctx, 20*time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatal(what)
}

// serves reports whether a source serves the certificate of credentials.
func serves(t *testing.T, source *trust.Source, c pki.Credentials) bool {
	t.Helper()
	chain, err := source.Chain()
	if err != nil {
		t.Fatal(err)
	}
	return chain[0].Equal(c.Chain[0])
}

// TestNewIdentities: the first identity of an agent is written, and each later one is used without a
// restart. The other identities of the process, and the order of them, do not matter.
func TestNewIdentities(t *testing.T) {
	ca, api := pkitest.New(t), newFake(t)
	api.listen()
	first, second := direct(t, ca, "region/a/agent/n1"), direct(t, ca, "region/a/agent/n1")
	other := direct(t, ca, "region/a/server/n1")
	api.give(other, first)
	c := api.config(io.Discard)
	if err := workload.Ensure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	source := open(t, c.Dir)
	if source.ID() != ca.ID("region/a/agent/n1") || !serves(t, source, first) {
		t.Errorf("the first identity is %s", source.ID())
	}
	run(t, c)
	api.give(second, other)
	until(t, "the second certificate is not in use", func() bool { return serves(t, source, second) })

	// The authority changes: the roots have both for a time, and then the new one only.
	old := ca.Root.Cert
	var err error
	ca.Root, err = pki.NewRoot(ca.Root.ID.Federation, pki.Env{Now: ca.Now, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	second.Roots, err = pki.NewRoots(old, ca.Root.Cert)
	if err != nil {
		t.Fatal(err)
	}
	api.give(second)
	until(t, "the new root is not trusted", func() bool { return len(source.Roots()) == 2 })
	third := direct(t, ca, "region/a/agent/n1")
	api.give(third)
	until(t, "the certificate of the new root is not in use", func() bool { return serves(t, source, third) && len(source.Roots()) == 1 })
}

// TestNoIdentity: the error of a process that gets no identity says what, where, and what to do.
func TestNoIdentity(t *testing.T) {
	ca := pkitest.New(t)
	for name, c := range map[string]struct {
		prepare func(*fake)
		kind    error
		want    []string
	}{
		"away": {func(*fake) {}, workload.ErrSilent, []string{"no such file", "look whether the SPIRE agent runs"}},
		"not registered": {(*fake).listen, workload.ErrNotRegistered, []string{
			"needs the identity spiffe://TRUST-DOMAIN/region/a/agent/n1, and has none", "register an entry with that SPIFFE ID for this process", "no identity issued",
		}},
		"registered as others": {func(f *fake) {
			f.give(direct(t, ca, "region/a/agent/n2"), direct(t, ca, "operator/jane"))
			f.listen()
		}, workload.ErrNotRegistered, []string{
			"needs the identity " + ca.ID("region/a/agent/n1").String() + ", and has " + ca.ID("operator/jane").String() + ", " + ca.ID("region/a/agent/n2").String() + ": register an entry",
		}},
		"a certificate that peers refuse": {func(f *fake) {
			c := direct(t, ca, "region/a/agent/n1")
			c.Roots, _ = pki.NewRoots(pkitest.New(t).Root.Cert)
			f.give(c)
			f.listen()
		}, workload.ErrUnusable, []string{"unknown authority"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newFake(t)
			c.prepare(api)
			cfg := api.config(io.Discard)
			cfg.Wait = time.Second
			began := time.Now()
			err := workload.Ensure(t.Context(), cfg)
			if !errors.Is(err, c.kind) || time.Since(began) > 10*time.Second {
				t.Fatalf("after %s: %v", time.Since(began), err)
			}
			for _, want := range append(c.want, api.socket()+" gave no identity of agent n1 of region a within 1s") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %s", err, want)
				}
			}
			if _, err := os.Stat(cfg.Dir); err == nil {
				t.Error("the folder was made")
			}
		})
	}
}

// TestRegisteredLater: a process that waits gets its identity as soon as it is registered, and a process
// that is stopped does not wait.
func TestRegisteredLater(t *testing.T) {
	ca, api := pkitest.New(t), newFake(t)
	api.listen()
	api.give(direct(t, ca, "region/a/agent/n2"))
	var log buffer
	c := api.config(&log)
	ensured := make(chan error, 1)
	go func() { ensured <- workload.Ensure(t.Context(), c) }()
	until(t, "no line about the wrong identity", func() bool { return strings.Contains(log.String(), "is not registered") })
	api.give(direct(t, ca, "region/a/agent/n1"))
	if err := <-ensured; err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Dir = t.TempDir()
	if err := workload.Ensure(ctx, c); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestWorkloadAPIEnds: while the Workload API is away the last identity is in use, also after a restart,
// with one line in the log. The next identity is in use once the Workload API is back.
func TestWorkloadAPIEnds(t *testing.T) {
	ca, api := pkitest.New(t), newFake(t)
	api.listen()
	first, second := direct(t, ca, "region/a/agent/n1"), direct(t, ca, "region/a/agent/n1")
	api.give(first)
	var log buffer
	c := api.config(&log)
	if err := workload.Ensure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	source := open(t, c.Dir)
	run(t, c)
	api.stop()
	const line = "the Workload API does not answer"
	until(t, "no line in the log", func() bool { return strings.Contains(log.String(), line) })
	if err := workload.Ensure(t.Context(), c); err != nil || !serves(t, source, first) {
		t.Errorf("the last identity is not in use: %v", err)
	}
	api.give(second)
	api.listen()
	until(t, "the second certificate is not in use", func() bool { return serves(t, source, second) })
	if n := strings.Count(log.String(), line); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// TestCheckSocket: only a socket of this machine is a source of identities.
func TestCheckSocket(t *testing.T) {
	for address, ok := range map[string]bool{
		"unix:///run/spire/agent.sock": true, "/run/spire/agent.sock": false, "unix:run/agent.sock": false, "unix://run/agent.sock": false,
		"tcp://127.0.0.1:8081": false, "tcp://10.0.0.1:8081": false, "": false, "unix:///run/agent.sock?x=1": false, "%": false,
	} {
		if err := workload.CheckSocket(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// buffer is a log that a test reads while another goroutine writes it.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
