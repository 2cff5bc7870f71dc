package member

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/replace"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Config describes a member and where it gets its certificate.
type Config struct {
	// Dir is the folder of the identity.
	Dir string
	// ID is the member without its federation.
	ID identity.ID
	// Servers are the gRPC addresses of the servers that give certificates: global servers for
	// a regional server and an operator, and servers of the region for an agent.
	Servers []string
	// Token returns the join token. It is called only if the folder has no identity that can be
	// used, and returns the zero token if there is none.
	Token func() (join.Token, error)
	// Root is the hash of the federation's root, for a member that joins without a token. It may be
	// the zero Root.
	Root join.Root
	// TokenGiven: the operator has given a token. Then a member that has an identity first asks
	// whether it is still a member, and otherwise joins again.
	TokenGiven bool
	// Pool is the pool that the agent's operator has chosen, or empty.
	Pool string
	// NameOfToken says that the token names the operator, and not ID.
	NameOfToken bool
	// TakesKeys: the program uses the keys of gossip that the federation gives it.
	TakesKeys bool
	Log       *slog.Logger
}

const (
	// newKeyFile has the key of a member that has not joined yet.
	newKeyFile = "new-key.pem"
	// poolFile has the pool that the federation has given to an agent.
	poolFile = "pool"
)

// rules returns the servers that may give a certificate to the member.
func (c *Config) rules() identity.Rules {
	if c.ID.Kind == identity.Agent {
		return identity.ServersOf(c.ID.Region)
	}
	return identity.GlobalServers()
}

func (c *Config) servers(accept func(*x509.Certificate) bool) *servers {
	return &servers{addrs: c.Servers, net: network.Host(), accept: accept, rules: c.rules(), log: c.Log}
}

// Exists reports whether a folder has an identity, which may have expired.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, trust.CertFile))
	return err == nil
}

// Ensure writes the identity of the member into the folder, unless the folder has one that is
// valid. It renews one that has expired. Otherwise the member joins with the token. Ensure asks
// the servers until one of them answers, or ctx ends.
func Ensure(ctx context.Context, c Config) error {
	var lost error                     // why the identity of the folder cannot be used
	c.Token = sync.OnceValues(c.Token) // it may be read from standard input
	if Exists(c.Dir) {
		lost = c.revive(ctx)
		if lost == nil || ctx.Err() != nil {
			return lost
		}
	}
	token, err := c.Token()
	switch {
	case lost != nil && (err != nil || token.IsZero() && c.Root.IsZero()):
		return errors.Join(lost, err)
	case err != nil:
		return err
	case token.IsZero() && c.Root.IsZero():
		return fmt.Errorf("%s has no identity, and there is no join token: make one with `nusa token create`", c.Dir)
	case lost != nil:
		c.Log.Warn("the identity cannot be renewed: this program joins again", "folder", c.Dir, "error", lost)
	}
	key, err := c.newKey()
	if err != nil {
		return err
	}
	return c.join(ctx, token, key, true)
}

// revive renews the identity of the folder if it has expired. It returns an error if the member was
// removed, so that it joins again with a token.
func (c *Config) revive(ctx context.Context) error {
	creds, err := readCredentials(c.Dir)
	if err != nil {
		return err
	}
	if time.Now().Before(creds.Chain[0].NotAfter) {
		return c.renewNow(ctx, creds) // trust.Open finds other faults
	}
	c.Log.Info("the certificate has expired: this program asks for the next one", "folder", c.Dir, "until", creds.Chain[0].NotAfter.UTC().Format(time.RFC3339))
	if c.joinLater(ctx, creds) {
		return nil
	}
	next, err := c.renewOrIssue(ctx, creds, Renewal{})
	if err != nil && unreached(err) {
		next, err = c.renew(ctx, creds, Renewal{}, true)
	}
	if err != nil {
		return err
	}
	return trust.Write(c.Dir, next)
}

// renewNow renews an identity that is valid, if the operator has given a token, or if the files of a
// regional server's authority cannot be used. If no server answers, the identity stays as it is.
func (c *Config) renewNow(ctx context.Context, creds pki.Credentials) error {
	damaged := false
	if c.ID.Kind == identity.Server {
		_, err := enroll.ReadAuthority(c.Dir)
		damaged = err != nil && !errors.Is(err, enroll.ErrNoAuthority)
	}
	if !damaged && !c.TokenGiven {
		return nil
	}
	next, err := c.renew(ctx, creds, Renewal{}, false)
	switch {
	case err == nil:
		return trust.Write(c.Dir, next)
	case unreached(err) && c.TokenGiven && c.joinLater(ctx, creds):
		return nil
	case unreached(err) || !c.TokenGiven:
		c.Log.Warn("the identity is not renewed now", "folder", c.Dir, "error", err)
		return nil
	}
	return err
}

func readCredentials(dir string) (pki.Credentials, error) {
	var text [3][]byte
	for i, name := range []string{trust.CertFile, trust.KeyFile, trust.RootsFile} {
		var err error
		text[i], err = os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return pki.Credentials{}, err
		}
	}
	return pki.ParseCredentials(text[0], text[1], text[2])
}

// join asks for the first certificate of a key, and writes it. With patience it asks until a server
// answers.
func (c *Config) join(ctx context.Context, token join.Token, key crypto.Signer, patient bool) error {
	var authority crypto.Signer
	var err error
	if c.ID.Kind == identity.Server {
		authority, err = pki.NewKey(rand.Reader)
		if err != nil {
			return err
		}
	}
	accept := func(root *x509.Certificate) bool {
		hash := join.HashOf(root.RawSubjectPublicKeyInfo)
		return token.Trusts(hash) || token.IsZero() && c.Root.Trusts(hash)
	}
	do := func(ctx context.Context, client nusav1.IdentityClient, federation string) (*nusav1.JoinResponse, error) {
		id := c.ID
		id.Federation = federation
		request, err := pki.NewRequest(id, key, rand.Reader)
		if err != nil {
			return nil, err
		}
		req := &nusav1.JoinRequest{Token: token.Reveal(), Request: request, Pool: c.Pool, NameOfToken: c.NameOfToken, TakesKeys: c.TakesKeys}
		if authority != nil {
			req.AuthorityRequest, err = authorityRequest(id, authority)
			if err != nil {
				return nil, err
			}
		}
		return client.Join(ctx, req)
	}
	var out *nusav1.JoinResponse
	if patient {
		out, err = c.servers(accept).until(ctx, "join", do)
	} else {
		out, err = c.servers(accept).first(ctx, do)
	}
	if err != nil {
		return fmt.Errorf("join with %s: %w", token, err)
	}
	if err := c.write(out, key, authority); err != nil {
		return err
	}
	c.Log.Info("this program has joined", "folder", c.Dir, "token", token.ID())
	return nil
}

func authorityRequest(id identity.ID, key crypto.Signer) ([]byte, error) {
	region := identity.ID{Federation: id.Federation, Kind: identity.Region, Region: id.Region}
	return pki.NewRequest(region, key, rand.Reader)
}

// newKey returns the key with which the member joins. It is the same after a restart, so that a
// token is used once even if the answer was lost.
func (c *Config) newKey() (crypto.Signer, error) {
	path := filepath.Join(c.Dir, newKeyFile)
	if text, err := os.ReadFile(path); err == nil {
		if key, err := pki.ParseKey(text); err == nil {
			return key, nil
		}
	}
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	return key, replace.File(path, text)
}

// write writes what a server has answered. The identity comes last, because the member has
// joined once the identity exists.
func (c *Config) write(out *nusav1.JoinResponse, key, authority crypto.Signer) error {
	creds, err := credentials(out, key)
	if err != nil {
		return err
	}
	if authority != nil && len(out.GetAuthority()) > 0 {
		if err := writeAuthority(c.Dir, out.GetAuthority(), authority); err != nil {
			return err
		}
	}
	if err := writeRings(c.Dir, out); err != nil {
		return err
	}
	if out.GetPool() != "" {
		if err := replace.File(filepath.Join(c.Dir, poolFile), []byte(out.GetPool()+"\n")); err != nil {
			return err
		}
	}
	if err := forgetReported(c.Dir); err != nil {
		return err
	}
	if err := trust.Write(c.Dir, creds); err != nil {
		return err
	}
	err = os.Remove(filepath.Join(c.Dir, newKeyFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Pool returns the pool that the federation has given to the agent of a folder, or "".
func Pool(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, poolFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func writeAuthority(dir string, cert []byte, key crypto.Signer) error {
	certs, err := pki.ParseCertificates(cert, 1)
	if err != nil {
		return err
	}
	a, err := pki.NewAuthority(certs[0], key)
	if err != nil {
		return err
	}
	return enroll.WriteAuthority(dir, a)
}

// credentials returns the credentials that a server has answered.
func credentials(out *nusav1.JoinResponse, key crypto.Signer) (pki.Credentials, error) {
	text, err := pki.EncodeKey(key)
	if err != nil {
		return pki.Credentials{}, err
	}
	creds, err := pki.ParseCredentials(out.GetChain(), text, out.GetRoots())
	if err != nil {
		return pki.Credentials{}, fmt.Errorf("answer of the server: %w", err)
	}
	_, err = pki.Verify(creds.Chain, creds.Roots, time.Now())
	if err != nil {
		return pki.Credentials{}, fmt.Errorf("answer of the server: %w", err)
	}
	return creds, nil
}

// renew asks for the next certificate. With patience it asks until a server answers.
func (c *Config) renew(ctx context.Context, creds pki.Credentials, r Renewal, patient bool) (pki.Credentials, error) {
	id, err := pki.Owner(pki.EncodeCertificates(creds.Chain[0]))
	if err != nil {
		return pki.Credentials{}, err
	}
	req := &nusav1.RenewRequest{Chain: pki.EncodeCertificates(creds.Chain...)}
	req.Request, err = pki.NewRequest(id, creds.Key, rand.Reader)
	if err != nil {
		return pki.Credentials{}, err
	}
	if r.Has != nil {
		req.Has = enroll.StateToProto(r.Has)
	}
	authority, err := c.dueAuthority(id, req, creds.Roots, r.Want.GetIssuer())
	if err != nil {
		return pki.Credentials{}, err
	}
	accept := func(root *x509.Certificate) bool {
		for _, own := range creds.Roots.Certs {
			if bytes.Equal(own.Raw, root.Raw) {
				return true
			}
		}
		return false
	}
	do := func(ctx context.Context, client nusav1.IdentityClient, _ string) (*nusav1.JoinResponse, error) {
		return client.Renew(ctx, req)
	}
	var out *nusav1.JoinResponse
	if patient {
		out, err = c.servers(accept).until(ctx, "renewal", do)
	} else {
		out, err = c.servers(accept).first(ctx, do)
	}
	if err != nil {
		return pki.Credentials{}, err
	}
	if r.Has == nil { // the servers have replaced what the member has reported before
		if err := forgetReported(c.Dir); err != nil {
			return pki.Credentials{}, err
		}
	}
	next, err := credentials(out, creds.Key)
	if err == nil {
		err = noteFormer(c.Dir, creds.Roots, next.Roots)
	}
	if err != nil {
		return pki.Credentials{}, err
	}
	if authority != nil && len(out.GetAuthority()) > 0 {
		if err := writeAuthority(c.Dir, out.GetAuthority(), authority); err != nil {
			return pki.Credentials{}, err
		}
	}
	return next, writeRings(c.Dir, out)
}

// dueAuthority adds a request for the next certificate of a regional server's authority, if
// half of the life of the present one has passed, if the files of the present one cannot be used, or
// if it does not come from the root from which it should; issuer is that root, or empty. It returns
// the key of the next one.
func (c *Config) dueAuthority(id identity.ID, req *nusav1.RenewRequest, roots *pki.Roots, issuer string) (crypto.Signer, error) {
	if id.Kind != identity.Server {
		return nil, nil
	}
	a, err := enroll.ReadAuthority(c.Dir)
	switch {
	case errors.Is(err, enroll.ErrNoAuthority):
		return nil, nil // a server whose identity was made by `nusa ca issue` has none
	case err != nil:
		c.Log.Warn("the authority of this server cannot be used: it asks for another one", "folder", c.Dir, "error", err)
	case (issuer == "" || pki.IssuerOf([]*x509.Certificate{a.Cert}, roots) == issuer) && time.Now().Before(pki.RenewAt(a.Cert.NotBefore, a.Cert.NotAfter, 0)):
		return nil, nil
	}
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	req.AuthorityRequest, err = authorityRequest(id, key)
	return key, err
}
