package ca

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// checkMember refuses the folder of another member, and a folder with files that do not come from
// an earlier issue. It returns the roots that the folder has.
func checkMember(out string, id identity.ID) ([]*x509.Certificate, error) {
	entries, err := os.ReadDir(out)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	owned := false
	other := ""
	for _, e := range entries {
		switch name := strings.TrimSuffix(e.Name(), ".new"); name {
		case trust.CertFile:
			owned = owned || e.Name() == name
		case trust.RootsFile, "lost+found":
		default:
			other = name
		}
	}
	switch {
	case owned:
		if err := checkOwner(out, id); err != nil {
			return nil, err
		}
	case other != "":
		return nil, fmt.Errorf("--out %s has %s and no %s: name a new folder for %s", out, other, trust.CertFile, id.Describe())
	}
	return rootsOf(out)
}

// checkOwner refuses a folder whose certificate is that of another member.
func checkOwner(out string, id identity.ID) error {
	path := filepath.Join(out, trust.CertFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	owner, err := pki.Owner(text)
	if err != nil {
		return fmt.Errorf("%s: %w: name a new folder with --out", path, err)
	}
	if owner != id {
		return fmt.Errorf("--out %s has the identity %s: name another folder for %s, or remove this one", out, owner, id)
	}
	return nil
}

// rootsOf returns the roots that a folder has. While the root of a federation is replaced, a
// member trusts the old root and the next one.
func rootsOf(out string) ([]*x509.Certificate, error) {
	path := filepath.Join(out, trust.RootsFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	roots, err := pki.ParseRoots(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: remove the file, and only the root of --dir is trusted", path, err)
	}
	return roots.Certs, nil
}
