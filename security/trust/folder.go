package trust

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// The files of a folder with credentials.
const (
	CertFile  = "cert.pem"
	KeyFile   = "key.pem"
	RootsFile = "roots.pem"
)

// ErrFolder is wrapped by the errors about the files of a folder.
var ErrFolder = errors.New("identity folder")

// maxFile bounds a file of a folder, in bytes.
const maxFile = 64 << 10

// files are the texts of a folder.
type files struct{ cert, key, roots string }

// Write writes credentials into a folder, which is created if it does not exist. A program
// that uses the folder reads the changed files. It uses them only when the certificate is
// for the key. If Write is interrupted, a program does not start with the folder until Write is
// repeated. The key comes last, so that a folder with a key and no certificate was not written
// by Write.
func Write(dir string, c pki.Credentials) error {
	key, err := pki.EncodeKey(c.Key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrFolder, err)
	}
	for _, f := range []struct {
		name string
		text []byte
	}{
		{RootsFile, pki.EncodeCertificates(c.Roots.Certs...)}, {CertFile, pki.EncodeCertificates(c.Chain...)}, {KeyFile, key},
	} {
		if err := replace.File(filepath.Join(dir, f.name), f.text); err != nil {
			return fmt.Errorf("%w: write %s: %w", ErrFolder, filepath.Join(dir, f.name), err)
		}
	}
	return nil
}

// read reads the files of a folder.
func read(dir string) (files, error) {
	var f files
	for _, one := range []struct {
		name string
		to   *string
	}{{CertFile, &f.cert}, {KeyFile, &f.key}, {RootsFile, &f.roots}} {
		path := filepath.Join(dir, one.name)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return files{}, fmt.Errorf("%w: %s does not exist: `nusa ca issue` creates it", ErrFolder, path)
		case err != nil:
			return files{}, fmt.Errorf("%w: %w", ErrFolder, err)
		case info.Size() > maxFile:
			return files{}, fmt.Errorf("%w: %s has %d bytes, at most %d", ErrFolder, path, info.Size(), maxFile)
		case one.name == KeyFile && info.Mode().Perm()&0o077 != 0:
			return files{}, fmt.Errorf("%w: %s can be read by other users than its owner: run chmod 600 %s", ErrFolder, path, path)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return files{}, fmt.Errorf("%w: %w", ErrFolder, err)
		}
		*one.to = string(text)
	}
	return f, nil
}
