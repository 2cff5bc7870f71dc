package global

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Secure says how a global server issues its own identity, and those of others.
type Secure struct {
	// Dir is the folder of the server's own identity. The server writes it.
	Dir string
	// OperatorDir is the folder into which the server writes the identity of an operator, for
	// the administrator of this machine. Empty: none.
	OperatorDir string
	// Federation is the name of a new federation. Empty: a part of the hash of the root's key.
	Federation string
	// CACert and CAKey are files with a root. Then the store does not have its key. Empty: the
	// store has the root, and the first server of a federation creates it.
	CACert, CAKey string
	// Lives are the lives of certificates by kind. A kind without an entry has its default.
	Lives map[identity.Kind]time.Duration
	// IfNew lets an older federation without identities stay so. A new federation gets a root.
	IfNew bool
	// Exposed is why this server may not run without identities. With IfNew, Run returns it for an
	// older federation. Nil: the server may.
	Exposed error
}

// recordRoot is what the keys of all records begin with.
const recordRoot = "/nusa/v1/"

// caKey is the key of the root's record.
const caKey = "identity/ca"

// records keeps the records of package enroll in the store of the global tier.
type records struct {
	store store.Store
	// active returns the term of this server, or nil if it is not the active one.
	active func() *leadershipTerm
}

// Get implements enroll.Store.
func (r records) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	kv, ok, _, err := r.store.Get(ctx, recordRoot+key)
	if err != nil || !ok {
		return nil, 0, state.RPCErrors.Err(err)
	}
	return kv.Value, uint64(kv.ModRevision), nil
}

// List implements enroll.Store.
func (r records) List(ctx context.Context, prefix string, visit func(string, []byte, uint64) error) error {
	_, err := r.store.List(ctx, recordRoot+prefix, func(kv store.KV) error {
		return visit(kv.Key[len(recordRoot):], kv.Value, uint64(kv.ModRevision))
	})
	return state.RPCErrors.Err(err)
}

// Change implements enroll.Store.
func (r records) Change(ctx context.Context, c enroll.Change) error {
	var compares []store.Compare
	var ops []store.Op
	for _, check := range c.Checks {
		compares = append(compares, store.Mod(recordRoot+check.Key, int64(check.Version)))
	}
	for _, p := range c.Puts {
		ops = append(ops, store.Put(recordRoot+p.Key, p.Value))
	}
	for _, key := range c.Deletes {
		ops = append(ops, store.Delete(recordRoot+key))
	}
	if err := r.record(ctx, c.Audit); err != nil {
		return err
	}
	_, err := r.store.Txn(ctx, compares, ops)
	if errors.Is(err, store.ErrCompareFailed) {
		return enroll.ErrChanged
	}
	return state.RPCErrors.Err(err)
}

// record stores the entry of a change in the audit trail before the change. Only the active server
// can. The others have the change in their logs.
func (r records) record(ctx context.Context, e *audit.Entry) error {
	t := r.active()
	if t == nil || e == nil {
		return nil
	}
	started := *e
	started.Outcome = audit.Started
	_, err := t.commit.Do(ctx, func(tx *state.Tx) error { return tx.Audit(started) })
	return state.RPCErrors.Err(err)
}

// enrollServer returns the services that give certificates to regional servers. own is nil if the
// server issues none.
func enrollServer(cfg *Config, st store.Store, active func() *leadershipTerm, own *issuing) *enroll.Server {
	return &enroll.Server{
		Source: cfg.Identity, Now: time.Now, Log: cfg.Logger,
		Store:  func() (enroll.Store, error) { return records{st, active}, nil },
		Issuer: own.issuer,
	}
}

// issuing is the part of a server that issues identities with the root of the federation.
type issuing struct {
	*Secure
	name string
	root *pki.Authority
	log  *slog.Logger
}

// issuer returns who signs, or an error if this server does not have the root's key.
func (s *issuing) issuer() (*enroll.Issuer, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: its identity was made by `nusa ca issue`", enroll.ErrNoAuthority)
	}
	return &enroll.Issuer{Authority: s.root, Lives: s.Lives}, nil
}

// openIssuing writes the identity of this server, which the root issues. It returns that identity.
func openIssuing(cfg *Config, root *pki.Authority) (*issuing, *trust.Source, error) {
	s := &issuing{Secure: cfg.Secure, name: cfg.Name, root: root, log: cfg.Logger}
	if err := checkFederation(cfg.Secure, root.ID.Federation); err != nil {
		return nil, nil, err
	}
	id := identity.ID{Federation: s.root.ID.Federation, Kind: identity.Global, Name: s.name}
	if err := s.issueTo(s.Dir, id); err != nil {
		return nil, nil, err
	}
	if s.OperatorDir != "" {
		operator := identity.ID{Federation: id.Federation, Kind: identity.Operator, Name: "local"}
		if err := s.issueTo(s.OperatorDir, operator); err != nil {
			return nil, nil, err
		}
	}
	source, err := trust.Open(trust.Options{Dir: s.Dir, Logger: s.log})
	if err != nil {
		return nil, nil, err
	}
	s.log.Info("connections are encrypted", "identity", source.ID().String(), "operator", s.OperatorDir)
	return s, source, nil
}

// issueTo writes an identity into a folder, if the folder has none that is valid for long.
func (s *issuing) issueTo(dir string, id identity.ID) error {
	old, err := trust.Open(trust.Options{Dir: dir})
	if err == nil && old.ID() == id && old.Ready() == nil {
		return nil
	}
	issuer, err := s.issuer()
	if err != nil {
		return err
	}
	c, err := s.issueOwn(issuer, id)
	if err != nil {
		return err
	}
	return trust.Write(dir, c)
}

// issueOwn returns a new identity of this machine.
func (s *issuing) issueOwn(issuer *enroll.Issuer, id identity.ID) (pki.Credentials, error) {
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		return pki.Credentials{}, err
	}
	chain, err := issuer.Issue(id, key.Public())
	if err != nil {
		return pki.Credentials{}, err
	}
	roots, err := pki.NewRoots(s.root.Cert)
	return pki.Credentials{Chain: chain, Key: key, Roots: roots}, err
}

// keep renews the identities that this server has issued to itself, until ctx ends. source is
// that of the server.
func (s *issuing) keep(ctx context.Context, source *trust.Source) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	own := []*trust.Source{source}
	if s.OperatorDir != "" {
		operator, err := trust.Open(trust.Options{Dir: s.OperatorDir, Logger: s.log})
		if err != nil {
			return err
		}
		own = append(own, operator)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range own {
		renew := func(context.Context) (pki.Credentials, error) {
			issuer, err := s.issuer()
			if err != nil {
				return pki.Credentials{}, err
			}
			return s.issueOwn(issuer, one.ID())
		}
		g.Go(func() error { return member.Keep(ctx, one, renew, s.log) })
	}
	return g.Wait()
}

// readRoot returns the root of the federation. The first server of all creates it, or stores given,
// which is the root of --ca-cert or nil.
func readRoot(ctx context.Context, r records, c *Secure, given *pki.Authority) (*pki.Authority, error) {
	for {
		value, version, err := r.Get(ctx, caKey)
		if err != nil {
			return nil, err
		}
		if version > 0 {
			return storedRoot(value, given)
		}
		if err := mayBegin(ctx, r, c, given); err != nil {
			return nil, err
		}
		root := given
		record := &nusav1.AuthorityRecord{}
		if root == nil {
			root, err = pki.NewRoot(c.Federation, pki.Env{Now: time.Now(), Rand: rand.Reader})
			if err == nil {
				record.Key, err = pki.EncodeKey(root.Key)
			}
			if err != nil {
				return nil, err
			}
		}
		record.Certificate = pki.EncodeCertificates(root.Cert)
		text, err := proto.Marshal(record)
		if err != nil {
			return nil, err
		}
		err = r.Change(ctx, enroll.Change{Checks: []enroll.Check{{Key: caKey}}, Puts: []enroll.Put{{Key: caKey, Value: text}}})
		if err != nil && !errors.Is(err, enroll.ErrChanged) {
			return nil, err
		}
	}
}

// storedRoot returns the root of a record. given is the root of --ca-cert, or nil.
func storedRoot(value []byte, given *pki.Authority) (*pki.Authority, error) {
	record := &nusav1.AuthorityRecord{}
	if err := proto.Unmarshal(value, record); err != nil {
		return nil, fmt.Errorf("stored record: %w", err)
	}
	certs, err := pki.ParseCertificates(record.GetCertificate(), 1)
	switch {
	case err != nil:
		return nil, fmt.Errorf("stored record: %w", err)
	case given != nil && !given.Cert.Equal(certs[0]):
		return nil, errors.New("the federation has another root than that of --ca-cert")
	case given != nil:
		return given, nil
	case len(record.GetKey()) == 0:
		return nil, errors.New("the store does not have its key: give --ca-cert and --ca-key")
	}
	key, err := pki.ParseKey(record.GetKey())
	if err != nil {
		return nil, fmt.Errorf("stored record: %w", err)
	}
	return pki.NewAuthority(certs[0], key)
}

// givenRoot returns the root of CACert and CAKey, and nil without them.
func givenRoot(c *Secure) (*pki.Authority, error) {
	if c.CACert == "" && c.CAKey == "" {
		return nil, nil
	}
	cert, err := os.ReadFile(filepath.Clean(c.CACert))
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: %w", err)
	}
	text, err := os.ReadFile(filepath.Clean(c.CAKey))
	if err != nil {
		return nil, fmt.Errorf("--ca-key: %w", err)
	}
	certs, err := pki.ParseCertificates(cert, 1)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: %w", err)
	}
	key, err := pki.ParseKey(text)
	if err != nil {
		return nil, fmt.Errorf("--ca-key: %w", err)
	}
	return pki.NewAuthority(certs[0], key)
}
