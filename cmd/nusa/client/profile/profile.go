package profile

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TokenFile is the file of a profile with an access token.
const TokenFile = "token"

// temporaryFile marks a profile that its writer removes. It has the path of the data directory.
const temporaryFile = "temporary"

// keptSuffix is the end of the name of a profile that a temporary one has replaced.
const keptSuffix = ".kept"

// maxFile bounds a file of a profile, in bytes.
const maxFile = 64 << 10

// Profile has the credentials of a client for one server address.
type Profile struct {
	// Roots are the certificates that the client trusts, in PEM.
	Roots []byte
	// Cert and Key are the certificate of an operator and its key, in PEM. Both are empty if the
	// client has only a token.
	Cert, Key []byte
	// Token is an access token, or empty.
	Token string
	// Temporary says that the writer removes the profile when the server ends, for example "nusa
	// dev in /tmp/x". It is empty for a profile that stays.
	Temporary string
	// Dir is the folder of a profile that Read has returned.
	Dir string
}

// HasIdentity reports whether the profile has a certificate.
func (p *Profile) HasIdentity() bool { return p != nil && len(p.Cert) > 0 && len(p.Key) > 0 }

// Path returns the folder of the profile of an address HOST:PORT. The folder may not exist.
func Path(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("profile: %q is not HOST:PORT", addr)
	}
	config, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("profile: %w", err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	return filepath.Join(config, "nusa", "profiles", plain(host)+"_"+plain(port)), nil
}

// plain returns a text as a part of a file name. Different hosts have different texts: the colons
// of IPv6 addresses become dashes, which no such address has, and other bytes become numbers.
func plain(text string) string {
	var b strings.Builder
	for _, c := range []byte(strings.ToLower(text)) {
		switch {
		case c == ':':
			b.WriteByte('-')
		case c == '.' && b.Len() > 0, c == '-', c >= '0' && c <= '9', c >= 'a' && c <= 'z':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

// Read returns the profile of an address, and nil if there is none. An error names the file that
// cannot be used.
func Read(addr string) (*Profile, error) {
	dir, err := Path(addr)
	if err != nil {
		return nil, nil // without a home there are no profiles
	}
	return readDir(dir)
}

func readDir(dir string) (*Profile, error) {
	p := &Profile{Dir: dir}
	var token, temporary []byte
	for _, f := range p.files(&token, &temporary) {
		text, err := readFile(filepath.Join(dir, f.name), f.secret)
		if err != nil {
			return nil, err
		}
		*f.text = text
	}
	if len(p.Roots) == 0 {
		return nil, nil // a profile without roots does not exist
	}
	p.Token, p.Temporary = strings.TrimSpace(string(token)), strings.TrimSpace(string(temporary))
	return p, nil
}

// file is a file of a profile.
type file struct {
	name   string
	text   *[]byte
	secret bool
}

// files returns the files of a profile in the order in which they are written.
func (p *Profile) files(token, temporary *[]byte) []file {
	return []file{
		{temporaryFile, temporary, false}, {trust.CertFile, &p.Cert, false}, {trust.KeyFile, &p.Key, true},
		{TokenFile, token, true}, {trust.RootsFile, &p.Roots, false},
	}
}

// readFile returns a file's text, and nothing if the file does not exist.
func readFile(path string, secret bool) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("profile: %w", err)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("profile: %s has %d bytes, at most %d", path, info.Size(), maxFile)
	case secret && info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("profile: %s can be read by other users than its owner: run chmod 600 %s", path, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return text, nil
}

// Write writes the profile of an address in place of an earlier one. A temporary profile keeps
// one that stays aside until Remove.
func Write(addr string, p Profile) error {
	dir, err := Path(addr)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	next, err := os.MkdirTemp(filepath.Dir(dir), ".new-") // with mode 0700
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer os.RemoveAll(next)
	token, temporary := []byte(p.Token), []byte(p.Temporary)
	for _, f := range p.files(&token, &temporary) {
		if len(*f.text) == 0 {
			continue
		}
		if err := replace.File(filepath.Join(next, f.name), *f.text); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	}
	before, err := readDir(dir)
	if p.Temporary != "" && (err != nil || before != nil && before.Temporary == "") {
		_ = os.RemoveAll(dir + keptSuffix)
		err = os.Rename(dir, dir+keptSuffix)
	} else {
		err = os.RemoveAll(dir)
	}
	if err == nil {
		err = os.Rename(next, dir)
	}
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// Remove removes the profile of an address if its roots and its mark are still those of p. The
// profile that a temporary one has kept aside comes back.
func Remove(addr string, p Profile) error {
	dir, err := Path(addr)
	if err != nil {
		return err
	}
	now, err := readDir(dir)
	if err != nil || now == nil || string(now.Roots) != string(p.Roots) || now.Temporary != p.Temporary {
		return err
	}
	err = os.RemoveAll(dir)
	if err == nil && p.Temporary != "" {
		err = os.Rename(dir+keptSuffix, dir)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}
