package cli

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// leastHash is how many digits of a root's hash are enough.
const leastHash = 32

// RunAnonymous returns a function for cobra like Run. The client shows no credentials. rootHash is the
// hash of the root that it trusts if it has no roots yet, or empty.
func (s *Settings) RunAnonymous(rootHash *string, f func(c *Session, args []string) error) func(*cobra.Command, []string) error {
	return s.run(func(c *Session) { c.anonymous, c.rootHash = true, *rootHash }, f)
}

// RootHash returns the hash of the first root that a session trusts, as --root-hash takes it. It is
// empty if the connection is not encrypted.
func RootHash(c *Session) string {
	text, err := rootsOf(c)
	if text == nil && err == nil && c.Identity != "" {
		text, err = os.ReadFile(filepath.Join(c.Identity, trust.RootsFile))
	}
	if err != nil {
		return ""
	}
	certs, err := pki.ParseCertificates(text, maxRoots)
	if err != nil || len(certs) == 0 {
		return ""
	}
	hash := join.HashOf(certs[0].RawSubjectPublicKeyInfo)
	return hex.EncodeToString(hash[:])[:leastHash]
}

// contact asks the servers for the root with a hash.
func contact(c *Session) ([]byte, error) {
	hash := strings.ToLower(c.rootHash)
	if _, err := hex.DecodeString(hash); err != nil || len(hash) < leastHash {
		return nil, fmt.Errorf("--root-hash %q: give the first %d digits of the hash of the federation's root (`%s auth provider list` shows them)", c.rootHash, leastHash, c.Program)
	}
	var errs []error
	for _, addr := range c.addrs {
		root, err := rootAt(c, addr, hash)
		if err == nil {
			return pki.EncodeCertificates(root), nil
		}
		errs = append(errs, fmt.Errorf("%s: %s", addr, status.Convert(err).Message()))
	}
	return nil, errors.Join(errs...)
}

// rootAt returns the root of a server if the root has the hash.
func rootAt(c *Session, addr, hash string) (root *x509.Certificate, err error) {
	accept := func(one *x509.Certificate) bool {
		full := join.HashOf(one.RawSubjectPublicKeyInfo)
		if !strings.HasPrefix(hex.EncodeToString(full[:]), hash) {
			return false
		}
		root = one
		return true
	}
	conn, err := serve.Dial(network.Host(), addr, grpc.WithTransportCredentials(trust.FirstContact(accept, anyServer)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(c.Ctx, c.Timeout)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return root, err
}
