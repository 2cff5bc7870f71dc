package store

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// ErrCredentials is wrapped by the errors about the credentials for an external etcd.
var ErrCredentials = errors.New("credentials for etcd")

// maxPassword bounds a file with a password, in bytes.
const maxPassword = 4 << 10

// Outside are the credentials for an external etcd.
type Outside struct {
	// CAFile has the certificates of the authorities that etcd's certificate may lead to. CertFile and
	// KeyFile have the client certificate, which is read again for each connection.
	CAFile, CertFile, KeyFile string
	// User is a user of etcd, whose password is in PasswordFile.
	User, PasswordFile string
}

// Any reports whether there are any credentials.
func (o Outside) Any() bool { return o != Outside{} }

// Check returns an error if the credentials are not complete.
func (o Outside) Check() error {
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		return fmt.Errorf("%w: a client certificate needs both --etcd-cert-file and --etcd-key-file", ErrCredentials)
	case (o.User == "") != (o.PasswordFile == ""):
		return fmt.Errorf("%w: a user needs both --etcd-user and --etcd-password-file", ErrCredentials)
	case o.CertFile != "" && o.CAFile == "":
		return fmt.Errorf("%w: --etcd-cert-file needs --etcd-ca-file, which verifies etcd", ErrCredentials)
	}
	return nil
}

// tls returns the configuration of TLS; nil without an authority.
func (o Outside) tls() (*tls.Config, error) {
	if o.CAFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%w: --etcd-ca-file: %w", ErrCredentials, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%w: --etcd-ca-file: %s has no certificate", ErrCredentials, o.CAFile)
	}
	if o.CertFile == "" {
		return c, nil
	}
	if err := private("--etcd-key-file", o.KeyFile); err != nil {
		return nil, err
	}
	load := func() (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		return &cert, err
	}
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("%w: --etcd-cert-file, --etcd-key-file: %w", ErrCredentials, err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return c, nil
}

// password returns the password of the user.
func (o Outside) password() (string, error) {
	if o.PasswordFile == "" {
		return "", nil
	}
	if err := private("--etcd-password-file", o.PasswordFile); err != nil {
		return "", err
	}
	text, err := os.ReadFile(o.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("%w: --etcd-password-file: %w", ErrCredentials, err)
	}
	if len(text) > maxPassword {
		return "", fmt.Errorf("%w: --etcd-password-file: %s has %d bytes, at most %d", ErrCredentials, o.PasswordFile, len(text), maxPassword)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// private returns an error if other users than its owner can read a file.
func private(flag, path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrCredentials, flag, err)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: %s: %s can be read by other users than its owner: run chmod 600 %s", ErrCredentials, flag, path, path)
	}
	return nil
}

// clientTLS returns the configuration of TLS for endpoints; nil for connections without
// encryption. Without credentials for an external etcd, and with an identity, the endpoints are
// those of another global server. An endpoint that begins with http:// is never encrypted.
func (cfg EtcdConfig) clientTLS() (*tls.Config, error) {
	switch {
	case strings.HasPrefix(cfg.Endpoints[0], "http://"), strings.HasPrefix(cfg.Endpoints[0], "unix:"):
		return nil, nil
	case cfg.Outside.Any():
		return cfg.Outside.tls()
	}
	return cfg.Identity.TLS(identity.GlobalServers(), "h2"), nil
}
