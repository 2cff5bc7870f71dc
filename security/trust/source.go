package trust

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// readEvery is the least time between two looks at the files. Watch looks each watchEvery.
const readEvery, watchEvery = time.Second, 5 * time.Second

// The reasons why a member is not ready.
var (
	// ErrEnding means that the certificate ends soon.
	ErrEnding = errors.New("the certificate ends soon and was not renewed")
	// ErrEnded means that the certificate has expired.
	ErrEnded = errors.New("the certificate has expired")
	// ErrUnused means that the files have changed and cannot be used. For example, roots.pem
	// no longer has the root of the own certificate.
	ErrUnused = errors.New("the changed identity cannot be used, and the earlier one with its roots stays in use")
)

// ErrFederation means that a peer belongs to another federation.
var ErrFederation = errors.New("member of another federation")

// Options configure a Source.
type Options struct {
	// Dir has the files cert.pem, key.pem and roots.pem.
	Dir string
	// Now returns the time. Default: time.Now.
	Now func() time.Time
	// Logger receives refused peers and damaged files. Default: none.
	Logger *slog.Logger
}

// Source has the credentials of this member. When the files of its folder change, the next
// handshake uses the new ones, and connections that exist continue. A nil *Source stands for a
// member without identity: its connections are not encrypted. A Source is safe for
// concurrent use.
type Source struct {
	opts    Options
	current atomic.Pointer[loaded]

	// reading is held by the goroutine that reads the files.
	reading sync.Mutex
	// nextRead is a time in nanoseconds.
	nextRead atomic.Int64
	// fault says why the present files are not in use. It is nil if they are.
	fault atomic.Pointer[error]
	// ended is the expired certificate about which a line was logged.
	ended atomic.Pointer[x509.Certificate]
	open  open
	refusals
}

// loaded are credentials that were verified when they were read.
type loaded struct {
	files files
	id    identity.ID
	cert  tls.Certificate
	roots *pki.Roots
}

// Open reads the credentials of a folder. It refuses credentials with which no peer would
// accept this member.
func Open(o Options) (*Source, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{opts: o}
	now := o.Now()
	c, err := s.load(now, nil)
	if err != nil {
		return nil, err
	}
	s.current.Store(c)
	s.nextRead.Store(now.Add(readEvery).UnixNano())
	return s, nil
}

// ID returns the identity of this member. It is the zero ID for a nil Source.
func (s *Source) ID() identity.ID {
	if s == nil {
		return identity.ID{}
	}
	return s.current.Load().id
}

// Require returns an error if the identity of this member is none of those that the rules
// allow. what says what this member is, for example "nusa agent".
func (s *Source) Require(what string, rules identity.Rules) error {
	if s == nil {
		return nil
	}
	if err := rules.Check(s.ID()); err != nil {
		return fmt.Errorf("%w: %s: %s needs the identity of %s, not of %s", ErrFolder, s.opts.Dir, what, rules, s.ID().Describe())
	}
	return nil
}

// Ready returns an error if the certificate ends soon or has expired, or if the files cannot be
// used. So a monitor sees a certificate that nobody renews before its connections fail, and a
// change of the roots that has no effect.
func (s *Source) Ready() error {
	if s == nil {
		return nil
	}
	err := s.life(s.get().cert.Leaf)
	fault := s.fault.Load()
	switch {
	case fault == nil:
		return err
	case err == nil:
		return fmt.Errorf("%w: %w", ErrUnused, *fault)
	}
	return fmt.Errorf("%w; %w: %w", err, ErrUnused, *fault)
}

// life returns an error if the certificate ends soon or has expired. It logs one line about a
// certificate that has expired.
func (s *Source) life(cert *x509.Certificate) error {
	now, until := s.opts.Now(), cert.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case now.After(cert.NotAfter):
		if s.ended.Swap(cert) != cert {
			s.opts.Logger.Warn("the certificate of this program has expired: peers refuse new connections", "folder", s.opts.Dir, "until", until)
		}
		return fmt.Errorf("%w at %s: put a new one into %s", ErrEnded, until, s.opts.Dir)
	case pki.Ending(cert.NotBefore, cert.NotAfter, now):
		return fmt.Errorf("%w: it ends at %s: put a new one into %s", ErrEnding, until, s.opts.Dir)
	}
	return nil
}

// Watch looks at the files until ctx ends, so that the log has faults of the files and the end
// of the certificate even if this member makes no connection.
func (s *Source) Watch(ctx context.Context) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	for range wait.Ticks(ctx, watchEvery) {
		_ = s.Ready() // the faults are logged
	}
	return nil
}

// get returns the present credentials. It first looks at the files if the last look was
// readEvery ago.
func (s *Source) get() *loaded {
	now := s.opts.Now()
	// A longer pause than readEvery means that the clock was set back.
	pause := time.Duration(s.nextRead.Load() - now.UnixNano())
	if pause > 0 && pause <= readEvery || !s.reading.TryLock() {
		return s.current.Load()
	}
	defer s.reading.Unlock()
	s.nextRead.Store(now.Add(readEvery).UnixNano())
	was := s.current.Load()
	c, err := s.load(now, was)
	if err != nil {
		before := s.fault.Swap(&err)
		// The text of an error may have the time, which differs at each look.
		if before == nil || reason.WithoutNumbers((*before).Error()) != reason.WithoutNumbers(err.Error()) {
			s.opts.Logger.Warn("cannot use the changed identity: the earlier one with its roots stays in use", "folder", s.opts.Dir, "error", err)
		}
		return was
	}
	s.fault.Store(nil)
	if c != was {
		s.current.Store(c)
		distrust(s, was.roots, c.roots)
		s.opts.Logger.Info("a changed identity is in use", "folder", s.opts.Dir, "id", c.id.String(), "until", c.cert.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return c
}

// load reads and verifies the credentials of the folder. It returns was if the files have not
// changed.
func (s *Source) load(now time.Time, was *loaded) (*loaded, error) {
	f, err := read(s.opts.Dir)
	if err != nil {
		return nil, err
	}
	if was != nil && f == was.files {
		return was, nil
	}
	c, err := pki.ParseCredentials([]byte(f.cert), []byte(f.key), []byte(f.roots))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFolder, s.opts.Dir, err)
	}
	id, err := pki.Verify(c.Chain, c.Roots, now)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFolder, s.opts.Dir, err)
	}
	if was != nil && id != was.id {
		return nil, fmt.Errorf("%w: %s: the identity changed from %s to %s: restart to use another identity", ErrFolder, s.opts.Dir, was.id, id)
	}
	out := &loaded{files: f, id: id, roots: c.Roots, cert: tls.Certificate{PrivateKey: c.Key, Leaf: c.Chain[0]}}
	for _, cert := range c.Chain {
		out.cert.Certificate = append(out.cert.Certificate, cert.Raw)
	}
	return out, nil
}

// config returns the TLS configuration for connections with the peers that the rules allow.
// It is the same for both ends.
func (s *Source) config(rules identity.Rules) *tls.Config {
	own := func() (*tls.Certificate, error) { return &s.get().cert, nil }
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		Time:                 s.opts.Now,
		// The TLS library would compare host names, and its servers would verify without
		// names. VerifyConnection replaces both. It runs in every handshake.
		InsecureSkipVerify: true,
		ClientAuth:         tls.RequireAnyClientCert,
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := s.verify(cs, rules)
			return err
		},
		// A resumed session would not show a change of the roots.
		SessionTicketsDisabled: true,
	}
}

// verify returns the identity of a peer that the rules allow.
func (s *Source) verify(cs tls.ConnectionState, rules identity.Rules) (identity.ID, error) {
	c := s.get()
	id, err := pki.Verify(cs.PeerCertificates, c.roots, s.opts.Now())
	if err != nil {
		return identity.ID{}, err
	}
	if id.Federation != c.id.Federation {
		return identity.ID{}, fmt.Errorf("%w: %s is not of federation %s", ErrFederation, id, c.id.Federation)
	}
	if err := rules.Check(id); err != nil {
		return identity.ID{}, err
	}
	return id, s.refused(id, keyOf(cs.PeerCertificates[0]))
}

// Roots returns the roots that this member trusts.
func (s *Source) Roots() []*x509.Certificate { return s.get().roots.Certs }

// Chain returns the certificate of this member and those of its authorities below the root. They
// must not be changed.
func (s *Source) Chain() ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for _, der := range s.get().cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Key returns the key of this member.
func (s *Source) Key() crypto.Signer { return s.get().cert.PrivateKey.(crypto.Signer) }

// Dir returns the folder of the credentials.
func (s *Source) Dir() string { return s.opts.Dir }
