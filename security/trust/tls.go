package trust

import (
	"crypto/tls"
	"fmt"
	"path/filepath"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// TLS returns the configuration of TLS for protocols other than those of this package: for both
// ends, with peers that the rules allow. It returns nil for a nil Source.
func (s *Source) TLS(rules identity.Rules, protocols ...string) *tls.Config {
	if s == nil {
		return nil
	}
	c := s.config(rules)
	c.NextProtos = protocols
	return c
}

// Web returns the configuration of an HTTPS server that also serves clients without a
// certificate. A certificate that a client sends must be that of a member. Web returns nil for a
// nil Source.
func (s *Source) Web() *tls.Config {
	c := s.TLS(webMembers, "http/1.1")
	if c == nil {
		return nil
	}
	admitStrangers(c)
	return c
}

// admitStrangers lets a server accept clients that send no certificate. A certificate that a
// client sends is verified all the same.
func admitStrangers(c *tls.Config) {
	c.ClientAuth = tls.RequestClientCert
	verify := c.VerifyConnection
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return nil
		}
		return verify(cs)
	}
}

// Path returns the path of a file of the credentials: CertFile, KeyFile or RootsFile.
func (s *Source) Path(file string) string { return filepath.Join(s.opts.Dir, file) }

// RequireTier returns the DNS name that all global servers share. It returns an error if the
// certificate of this member does not have the name. Peers of the embedded etcd look for it.
func (s *Source) RequireTier() (string, error) {
	name := pki.TierName(s.ID().Federation)
	if err := s.get().cert.Leaf.VerifyHostname(name); err != nil {
		return "", fmt.Errorf("%w: %s: the certificate lacks the DNS name %s, by which the etcd members know each other: issue another one", ErrFolder, s.opts.Dir, name)
	}
	return name, nil
}
