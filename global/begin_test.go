package global

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// refused returns the error with which a server ends that must not start.
func (f *federation) refused(t *testing.T, change func(*Config)) error {
	t.Helper()
	client := f.mem.Client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	cfg := Config{Name: "g1", GRPCAddr: "g1:7600", HTTPAddr: "-", Advertise: "g1:7600", Store: client, Net: f.pipes.net(), Logger: slog.New(slog.DiscardHandler)}
	change(&cfg)
	cfg.Ready = func(Addresses) { cancel() }
	return Run(ctx, cfg)
}

// TestBeginning: a new federation gets a root. An older one gets none by itself. No server starts
// with identities that the others do not have.
func TestBeginning(t *testing.T) {
	t.Parallel()
	ca := pkitest.New(t)
	own, other := rootFiles(t, ca.Root), rootFiles(t, pkitest.New(t).Root)
	exposed := errors.New("other machines reach it")
	for _, c := range []struct {
		name   string
		before []func(*Config) // servers that have run before
		now    func(*Config)
		want   string // a part of the error; empty: the server starts
		secure bool   // the server has an identity
	}{
		{"a new federation", nil, ifNew(nil), "", true},
		{"a new federation, reached by other machines", nil, ifNew(exposed), "", true},
		{"a new federation, on purpose without", nil, plain, "", false},
		{"again", []func(*Config){ifNew(nil)}, ifNew(nil), "", true},
		{"an older federation", []func(*Config){plain}, ifNew(nil), "", false},
		{"an older federation, reached by other machines", []func(*Config){plain}, ifNew(exposed), exposed.Error(), false},
		{"an older federation gets identities", []func(*Config){plain}, secure, "", true},
		{"without, though the others have identities", []func(*Config){secure}, plain, "leave --insecure out", false},
		{"identities of nusa ca", nil, given(ca), "", true},
		{"identities of nusa ca, then none", []func(*Config){given(ca)}, ifNew(nil), "give --identity, or --insecure", false},
		{"identities of nusa ca, then a new root", []func(*Config){given(ca)}, secure, "a new root would refuse all of them: give the root of " + ca.Root.ID.Federation, false},
		{"identities of nusa ca, then their root", []func(*Config){given(ca)}, withRoot(own), "", true},
		{"identities of nusa ca, then another root", []func(*Config){given(ca)}, withRoot(other), "give the root of " + ca.Root.ID.Federation, false},
		{"a root of nusa ca, then the identities", []func(*Config){withRoot(own)}, given(ca), "", true},
		{"an identity of another federation", nil, foreign(ca), "the store has no root", false},
		{"an identity of another federation, and a root", []func(*Config){secure}, foreign(ca), "is of " + ca.Root.ID.Federation + ", and the root is of nusa-", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFederation()
			dir := t.TempDir()
			at := func(change func(*Config)) func(*Config) {
				return func(cfg *Config) {
					change(cfg)
					if cfg.Secure != nil && cfg.Secure.Dir == "" {
						cfg.Secure.Dir = filepath.Join(dir, "identity")
					}
				}
			}
			for _, change := range c.before {
				f.start(t, "g0", at(change)).stop()
			}
			var log strings.Builder
			err := f.refused(t, func(cfg *Config) {
				at(c.now)(cfg)
				if cfg.Secure != nil {
					cfg.Secure.OperatorDir = filepath.Join(dir, "operator")
				}
				cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if err != nil {
				return
			}
			_, made := os.Stat(filepath.Join(dir, "operator", trust.CertFile))
			if issues := !strings.HasPrefix(c.name, "a root of") && c.name != "identities of nusa ca"; issues && (made == nil) != c.secure {
				t.Errorf("the operator's identity: %v, want %t", made, c.secure)
			}
			if reminded := strings.Contains(log.String(), "this federation has no identities"); reminded != (c.name == "an older federation") {
				t.Errorf("the log says that there are no identities: %t", reminded)
			}
		})
	}
}

// lateStore lets another server begin the federation after the first look for the root.
type lateStore struct {
	store.Store
	begin func()
}

func (l *lateStore) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	kv, found, revision, err := l.Store.Get(ctx, key)
	if begin := l.begin; begin != nil && key == recordRoot+enroll.AuthorityKey {
		l.begin = nil
		begin()
	}
	return kv, found, revision, err
}

// TestBeginningTogether: a server that starts while another one begins the federation has an identity of
// the same root.
func TestBeginningTogether(t *testing.T) {
	ca, f, dir := pkitest.New(t), newFederation(), t.TempDir()
	client := f.mem.Client()
	defer client.Close()
	late := &lateStore{Store: client, begin: func() {
		r := records{client, func() *leadershipTerm { return nil }}
		if err := enroll.CreateRoot(t.Context(), r, ca.Root, true); err != nil {
			t.Error(err)
		}
		if _, err := client.Txn(t.Context(), nil, []store.Op{store.Put(state.ClusterKey, []byte("begun"))}); err != nil {
			t.Error(err)
		}
	}}
	log := slog.New(slog.DiscardHandler)
	s := &server{cfg: Config{Name: "g1", Logger: log, Secure: &Secure{IfNew: true, Dir: filepath.Join(dir, "identity")}}, store: late, log: log}
	if err := openRoot(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if s.plain || s.cfg.Identity.ID() != ca.ID("global/g1") {
		t.Errorf("plain %v, identity %s", s.plain, s.cfg.Identity.ID())
	}
}

// TestLaterRootThanTheStore: a server does not replace an identity of a later root with one of an
// earlier root.
func TestLaterRootThanTheStore(t *testing.T) {
	now := time.Now()
	at := func(ago time.Duration) (*pki.Authority, *enroll.Root) {
		t.Helper()
		ca, err := pki.NewRoot("fed", pki.Env{Now: now.Add(-ago), Rand: rand.Reader})
		if err != nil {
			t.Fatal(err)
		}
		client := newFederation().mem.Client()
		t.Cleanup(func() { _ = client.Close() })
		r := records{client, func() *leadershipTerm { return nil }}
		if err := enroll.CreateRoot(t.Context(), r, ca, true); err != nil {
			t.Fatal(err)
		}
		root, err := enroll.ReadRoot(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return ca, root
	}
	_, first := at(2 * time.Hour)
	_, second := at(time.Hour)
	dir := filepath.Join(t.TempDir(), "identity")
	s := &issuing{Secure: &Secure{Dir: dir}, name: "g0", log: slog.New(slog.DiscardHandler)}
	id := identity.ID{Federation: "fed", Kind: identity.Global, Name: s.name}
	for _, step := range []struct {
		root *enroll.Root
		want error
	}{{first, nil}, {second, nil}, {second, nil}, {first, errOldRoot}, {second, nil}} {
		s.now.Store(step.root)
		if err := s.issueTo(dir, id); !errors.Is(err, step.want) {
			t.Fatalf("root %s: %v, want %v", step.root.State.Issuer, err, step.want)
		}
	}
}

func plain(*Config) {}

func secure(c *Config) { c.Secure = &Secure{} }

func ifNew(exposed error) func(*Config) {
	return func(c *Config) { c.Secure = &Secure{IfNew: true, Exposed: exposed} }
}

// given uses an identity that `nusa ca` made.
func given(ca *pkitest.CA) func(*Config) {
	return func(c *Config) { c.Identity = ca.Source("global/" + c.Name) }
}

// foreign has an identity of another federation in the folder of its own.
func foreign(ca *pkitest.CA) func(*Config) {
	return func(c *Config) { c.Secure = &Secure{Dir: ca.Dir("global/" + c.Name)} }
}

func withRoot(files [2]string) func(*Config) {
	return func(c *Config) { c.Secure = &Secure{CACert: files[0], CAKey: files[1]} }
}

// rootFiles writes a root as --ca-cert and --ca-key.
func rootFiles(t *testing.T, root *pki.Authority) (files [2]string) {
	t.Helper()
	key, err := pki.EncodeKey(root.Key)
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range [][]byte{pki.EncodeCertificates(root.Cert), key} {
		files[i] = filepath.Join(t.TempDir(), rand.Text())
		if err := os.WriteFile(files[i], text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestReminder: the log of an older federation says each hour that it has no identities.
func TestReminder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour+time.Minute)
		defer cancel()
		s := &server{plain: true, log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := remind(ctx, s); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "start the global servers with --secure"); n != 4 {
			t.Errorf("%d lines", n)
		}
	})
}
