package dev

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/ca"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// certLife is the life of each certificate. It is long, because a laptop may sleep. A
	// certificate is replaced when half of its life is over.
	certLife = 60 * 24 * time.Hour
	// renewEvery is how often the certificates are looked at.
	renewEvery = 10 * time.Minute
	// keyLength is the length of a key of gossip or probes, in bytes.
	keyLength = 32
)

// identities has the authorities of a federation, and the members to which they issue. A nil
// *identities means that nothing is encrypted.
type identities struct {
	dir string // the data directory
	ca  *ca.Authorities
	log *slog.Logger
	// probeKey and gossipKeys are new at each start, because all servers start together.
	probeKey   []byte
	gossipKeys map[string][]byte

	mu      sync.Mutex
	members []issued
}

// issued is a member that has an identity.
type issued struct{ path, dir string }

// openIdentities opens the authorities in the folder ca of the data directory. The folder is one
// of `nusa ca`.
func openIdentities(ctx context.Context, o *Options) (*identities, error) {
	if o.Insecure {
		return nil, nil
	}
	i := &identities{dir: o.DataDir, log: o.Logger, probeKey: newKey(), gossipKeys: map[string][]byte{}}
	for _, region := range o.Regions {
		i.gossipKeys[region] = newKey()
	}
	var err error
	i.ca, err = ca.Open(ctx, i.caDir(), o.Regions, certLife)
	if err != nil {
		return nil, fmt.Errorf("identities of the federation: %w", err)
	}
	return i, nil
}

func newKey() []byte {
	key := make([]byte, keyLength)
	_, _ = rand.Read(key) // never fails
	return key
}

func (i *identities) caDir() string { return filepath.Join(i.dir, "ca") }

// operator returns the folder of the operator's identity; empty without identities.
func (i *identities) operator() string {
	if i == nil {
		return ""
	}
	return filepath.Join(i.dir, "operator")
}

// folder returns the folder of a member's identity. name is that of the member's data directory.
func (i *identities) folder(name string) string {
	return filepath.Join(i.dir, name, serve.IdentityDir)
}

// global returns how the global server issues its own identity and that of the operator.
func (i *identities) global(name string) *global.Secure {
	if i == nil {
		return nil
	}
	cert, key := ca.Files(i.caDir())
	return &global.Secure{Dir: i.folder(name), OperatorDir: i.operator(), CACert: cert, CAKey: key}
}

// watcher returns the identity that the global server has written for itself.
func (i *identities) watcher(name string) (*trust.Source, error) {
	if i == nil {
		return nil, nil
	}
	return trust.Open(trust.Options{Dir: i.folder(name)})
}

// server returns the identity of a regional server. The server can issue certificates to agents,
// too.
func (i *identities) server(region, name string) (*trust.Source, error) {
	if i == nil {
		return nil, nil
	}
	if err := enroll.WriteAuthority(i.folder(name), i.ca.Region(region)); err != nil {
		return nil, err
	}
	return i.issue("region/"+region+"/server/"+name, i.folder(name))
}

// agent returns the identity of an agent.
func (i *identities) agent(region, name string) (*trust.Source, error) {
	if i == nil {
		return nil, nil
	}
	return i.issue("region/"+region+"/agent/"+name, i.folder(name))
}

// gossip returns the keys of gossip of a region, and probes those of the latency probes.
func (i *identities) gossip(region string) [][]byte {
	if i == nil {
		return nil
	}
	return [][]byte{i.gossipKeys[region]}
}

func (i *identities) probes() [][]byte {
	if i == nil {
		return nil
	}
	return [][]byte{i.probeKey}
}

// issue opens the identity of a member, which keep renews from now on.
func (i *identities) issue(path, dir string) (*trust.Source, error) {
	m := issued{path, dir}
	if err := i.ensure(m); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.members = append(i.members, m)
	return trust.Open(trust.Options{Dir: dir, Logger: i.log})
}

// ensure writes a new identity into the folder of a member, unless the folder has one with at
// least half of its life left.
func (i *identities) ensure(m issued) error {
	id, err := i.ca.ID(m.path)
	if err != nil {
		return err
	}
	if s, err := trust.Open(trust.Options{Dir: m.dir}); err == nil && s.ID() == id {
		chain, err := s.Chain()
		if err == nil && time.Now().Before(pki.RenewAt(chain[0].NotBefore, chain[0].NotAfter, 0)) {
			return nil
		}
	}
	c, err := i.ca.Issue(id)
	if err != nil {
		return err
	}
	return trust.Write(m.dir, c)
}

// keep renews the identities until ctx ends. The global server renews its own and the operator's.
func (i *identities) keep(ctx context.Context) error {
	if i == nil {
		return nil
	}
	for range wait.Ticks(ctx, renewEvery) {
		i.mu.Lock()
		members := i.members
		i.mu.Unlock()
		var failed []error
		for _, m := range members {
			failed = append(failed, i.ensure(m))
		}
		if err := errors.Join(failed...); err != nil {
			return fmt.Errorf("renew the identities: %w", err)
		}
	}
	return nil
}
