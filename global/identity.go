package global

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
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
	if t := r.active(); t != nil && c.Audit != nil && err == nil {
		t.addMemberEvent(*c.Audit)
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
	// now is the root that the store has.
	now atomic.Pointer[enroll.Root]
	log *slog.Logger
}

// present returns the root that the store has, or nil.
func (s *issuing) present() *enroll.Root {
	if s == nil {
		return nil
	}
	return s.now.Load()
}

// issuer returns who signs, or an error if this server does not have the root's key.
func (s *issuing) issuer() (*enroll.Issuer, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: its identity was made by `nusa ca issue`", enroll.ErrNoAuthority)
	}
	now := s.now.Load()
	if now.Authority.Key == nil {
		return nil, fmt.Errorf("%w: it does not have the key of root %s: append the root and its key to the files of --ca-cert and --ca-key", enroll.ErrNoAuthority, now.State.Issuer)
	}
	return &enroll.Issuer{Authority: now.Authority, Above: now.Above(), Lives: s.Lives}, nil
}

// openIssuing writes the identity of this server, which the root issues. It returns that identity.
func openIssuing(cfg *Config, root *enroll.Root) (*issuing, *trust.Source, error) {
	s := &issuing{Secure: cfg.Secure, name: cfg.Name, log: cfg.Logger}
	s.now.Store(root)
	federation := root.Authority.ID.Federation
	if err := checkFederation(cfg.Secure, federation); err != nil {
		return nil, nil, err
	}
	id := identity.ID{Federation: federation, Kind: identity.Global, Name: s.name}
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

// issueTo writes an identity into a folder, if the folder has none of a trusted root that is valid
// for long.
func (s *issuing) issueTo(dir string, id identity.ID) error {
	root := s.now.Load()
	old, err := trust.Open(trust.Options{Dir: dir})
	if err == nil && old.ID() == id {
		has, err := enroll.Has(old)
		if err != nil || root.Trusts(has.Issuer) && old.Ready() == nil {
			return err
		}
		if !root.Trusts(has.Issuer) && latest(old.Roots()).After(latest(root.Certificates())) {
			return fmt.Errorf("%w: %s has an identity of root %s, which is later than root %s of the store: "+
				"restore a later copy of the store, or move %s away to use the root of the store", errOldRoot, dir, has.Issuer, root.State.Issuer, dir)
		}
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

// errOldRoot says that the store was probably restored from a copy that was made before a change of
// the root. With the old root the server would refuse the members that have the later root.
var errOldRoot = errors.New("the store is a copy from before a change of the root, or the change was taken back while this server was off")

// latest returns when the life of the latest root begins.
func latest(roots []*x509.Certificate) (begin time.Time) {
	for _, root := range roots {
		if root.NotBefore.After(begin) {
			begin = root.NotBefore
		}
	}
	return begin
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
	roots, err := pki.NewRoots(s.now.Load().Certificates()...)
	return pki.Credentials{Chain: chain, Key: key, Roots: roots}, err
}

// keep renews the identities that this server has issued to itself, until ctx ends. source is
// that of the server.
func (s *issuing) keep(ctx context.Context, source *trust.Source, orders *member.Orders) error {
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
		renew := func(context.Context, member.Renewal) (pki.Credentials, error) {
			issuer, err := s.issuer()
			if err != nil {
				return pki.Credentials{}, err
			}
			return s.issueOwn(issuer, one.ID())
		}
		g.Go(func() error {
			return (&member.Renewer{Source: one, Orders: orders, Renew: renew, Log: s.log}).Run(ctx)
		})
	}
	return g.Wait()
}

// readRoot returns the root of the federation. The first server of all creates it, or stores the
// first one of given, which are the roots of --ca-cert.
func readRoot(ctx context.Context, r records, c *Secure, given []*pki.Authority) (*enroll.Root, error) {
	for {
		root, err := enroll.ReadRoot(ctx, r, given)
		if err != nil {
			return nil, err
		}
		if root != nil {
			return root, root.Check(given)
		}
		var first *pki.Authority
		if len(given) > 0 {
			first = given[0]
		}
		if err := mayBegin(ctx, r, c, first); err != nil {
			return nil, err
		}
		if first == nil {
			first, err = pki.NewRoot(c.Federation, pki.Env{Now: time.Now(), Rand: rand.Reader})
			if err != nil {
				return nil, err
			}
		}
		err = enroll.CreateRoot(ctx, r, first, len(given) == 0)
		if err != nil && !errors.Is(err, enroll.ErrChanged) {
			return nil, err
		}
	}
}

// mostGiven bounds the roots in the files of a server: the present one, and the next one.
const mostGiven = 2

// givenRoots returns the roots of CACert and CAKey. There are none without the files.
func givenRoots(c *Secure) ([]*pki.Authority, error) {
	if c == nil || c.CACert == "" && c.CAKey == "" {
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
	certs, err := pki.ParseCertificates(cert, mostGiven)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: %w", err)
	}
	keys, err := pki.ParseKeys(text, mostGiven)
	if err != nil {
		return nil, fmt.Errorf("--ca-key: %w", err)
	}
	out, err := pki.Pair(certs, keys)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert, --ca-key: %w", err)
	}
	return out, nil
}

// given returns the roots in the files of this server.
func (s *issuing) given() ([]*pki.Authority, error) {
	if s == nil {
		return nil, nil
	}
	return givenRoots(s.Secure)
}
