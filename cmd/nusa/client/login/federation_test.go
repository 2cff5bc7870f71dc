package login_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/trust"
)

func TestMain(m *testing.M) {
	// A probe of memberlist ends only after its time-out.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// patience bounds the wait for a condition. Even a slow and busy machine needs less.
const patience = 90 * time.Second

// The ports of the federation.
const (
	portActive, portStandby = 0, 1
	portRegion              = 2 // four: gRPC, Raft, gossip, probe
)

// federation has two global servers and a region with one server. All have joined with tokens.
type federation struct {
	t       *testing.T
	port    int
	mem     *store.Memory
	dir     string
	lives   map[identity.Kind]time.Duration
	globals []func()
}

// start starts the federation, which ends with the test.
func start(t *testing.T, lives map[identity.Kind]time.Duration) *federation {
	t.Helper()
	f := &federation{t: t, port: freeport.Reserve(t, 10), mem: store.NewMemory(), dir: t.TempDir(), lives: lives}
	for _, name := range []string{"NUSA_ADDR", "NUSA_IDENTITY", "NUSA_ROOTS", "NUSA_TOKEN", "NUSA_TOKEN_FILE", "NUSA_REGION", "BROWSER", "DISPLAY", "WAYLAND_DISPLAY"} {
		t.Setenv(name, "")
	}
	f.global("g1", portActive)
	f.global("g2", portStandby)
	f.user("root")
	f.eventually("a token for a server", func() error {
		return f.nusa("token", "create", "--role", "server", "--region", "a", "--out", f.path("server.token"), f.at(portActive), "--identity", f.path("g1-operator")).err()
	})
	f.server()
	return f
}

func (f *federation) addr(port int) string    { return fmt.Sprintf("127.0.0.1:%d", f.port+port) }
func (f *federation) at(port int) string      { return "--addr=" + f.addr(port) }
func (f *federation) path(name string) string { return filepath.Join(f.dir, name) }

// run runs a role until the test ends, or until stop is called.
func (f *federation) run(role func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- role(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("a role ended with %v", err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func logger() *slog.Logger {
	if os.Getenv("NUSA_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

func (f *federation) global(name string, port int) {
	f.t.Helper()
	mem := f.mem.Client()
	f.t.Cleanup(func() { mem.Close() })
	ready := make(chan struct{})
	f.globals = append(f.globals, f.run(func(ctx context.Context) error {
		return global.Run(ctx, global.Config{
			Name: name, GRPCAddr: f.addr(port), HTTPAddr: "-", Store: mem, Logger: logger().With("server", name),
			Secure: &global.Secure{Dir: f.path(name), OperatorDir: f.path(name + "-operator"), Lives: f.lives},
			Ready:  func(global.Addresses) { close(ready) },
		})
	}))
	select {
	case <-ready:
	case <-time.After(patience):
		f.t.Fatalf("%s is not ready", name)
	}
}

// server starts the server of region a, which joins with a token.
func (f *federation) server() {
	f.t.Helper()
	text, err := os.ReadFile(f.path("server.token"))
	if err != nil {
		f.t.Fatal(err)
	}
	token, err := join.Parse(string(text))
	if err != nil {
		f.t.Fatal(err)
	}
	dir := f.path("s1")
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	err = member.Ensure(ctx, member.Config{
		Dir: dir, ID: identity.ID{Kind: identity.Server, Region: "a", Name: "s1"}, Servers: []string{f.addr(portActive)},
		Token: func() (join.Token, error) { return token, nil }, Log: logger(),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	source, err := trust.Open(trust.Options{Dir: dir})
	if err != nil {
		f.t.Fatal(err)
	}
	f.run(func(ctx context.Context) error {
		return regional.Run(ctx, regional.Config{
			Region: &nusav1.RegionDefinition{Name: "a"}, Name: "s1", DataDir: f.t.TempDir(), HTTPAddr: "-", HistoryBytes: -1, BootstrapExpect: 1,
			GRPCAddr: f.addr(portRegion), RaftAddr: f.addr(portRegion + 1), GossipAddr: f.addr(portRegion + 2), ProbeAddr: f.addr(portRegion + 3),
			Global: []string{f.addr(portActive), f.addr(portStandby)}, Identity: source, Logger: logger().With("server", "s1"),
		})
	})
}

// user makes the next commands those of another user of the machine, with profiles of its own.
func (f *federation) user(name string) {
	f.t.Helper()
	f.t.Setenv("XDG_CONFIG_HOME", f.path("home-"+name))
}

// result is what a command printed, and its exit code.
type result struct {
	args     []string
	code     int
	out, log string
}

func (r result) err() error {
	if r.code == 0 {
		return nil
	}
	return fmt.Errorf("nusa %s: exit code %d: %s%s", strings.Join(r.args, " "), r.code, r.out, r.log)
}

// nusa runs a command of the client.
func (f *federation) nusa(args ...string) result {
	var log lines
	return f.watched(&log, args...)
}

// watched runs a command whose messages others read meanwhile.
func (f *federation) watched(log *lines, args ...string) result {
	var out bytes.Buffer
	root := client.Root()
	root.AddCommand(client.Commands()...)
	root.SetOut(&out)
	root.SetErr(log)
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	code := client.ExecuteArgs(ctx, root, args)
	return result{args, code, out.String(), log.String()}
}

// must fails the test if a command fails. It returns what the command printed.
func (f *federation) must(args ...string) string {
	f.t.Helper()
	r := f.nusa(args...)
	if err := r.err(); err != nil {
		f.t.Fatal(err)
	}
	return r.out + r.log
}

// refused fails the test unless a command fails with a text.
func (f *federation) refused(want string, args ...string) {
	f.t.Helper()
	if r := f.nusa(args...); r.code == 0 || !strings.Contains(r.log, want) {
		f.t.Errorf("nusa %s: exit code %d: %s%s, want %q", strings.Join(args, " "), r.code, r.out, r.log, want)
	}
}

// eventually calls want until it returns nil.
func (f *federation) eventually(what string, want func() error) {
	f.t.Helper()
	end := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := want()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}

// lines is a text that one goroutine writes and others read.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var _ io.Writer = (*lines)(nil)

// after returns the word after a text, once that is written.
func (f *federation) after(log *lines, text string) string {
	f.t.Helper()
	word := ""
	f.eventually(text, func() error {
		_, rest, ok := strings.Cut(log.String(), text)
		if line, _, whole := strings.Cut(rest, "\n"); ok && whole {
			word = strings.TrimSpace(line)
			return nil
		}
		return errors.New("it is not written: " + log.String())
	})
	return word
}
