package member

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// formerFile has the hashes of the roots that the member has given up, one a line.
const formerFile = "former-roots"

// joinLater joins with a token of a root that the identity does not trust: the root was changed while
// this machine was off, so no server renews the identity. It asks each server once, and reports
// whether the member has joined. The key stays the same, because it owns the name.
func (c *Config) joinLater(ctx context.Context, creds pki.Credentials) bool {
	token, err := c.Token()
	if err != nil || token.IsZero() || slices.ContainsFunc(keysOf(creds.Roots), token.Trusts) {
		return false
	}
	former, err := formerRoots(c.Dir)
	if err != nil || slices.ContainsFunc(former, token.Trusts) {
		return false // for example, the token was made before the root was changed
	}
	err = c.join(ctx, token, creds.Key, false)
	if err != nil && !unreached(err) { // for example, the member was removed
		key, keyErr := c.newKey()
		if keyErr == nil {
			err = c.join(ctx, token, key, false)
		}
	}
	if err == nil {
		var now pki.Credentials
		now, err = readCredentials(c.Dir)
		if err == nil {
			err = noteFormer(c.Dir, creds.Roots, now.Roots)
		}
	}
	if err != nil {
		c.Log.Warn("the token is of another root than the identity, and this program has not joined with it", "folder", c.Dir, "error", err)
	}
	return err == nil
}

// keysOf returns the hashes of the keys of roots.
func keysOf(roots *pki.Roots) (out []join.Hash) {
	if roots != nil {
		for _, root := range roots.Certs {
			out = append(out, join.HashOf(root.RawSubjectPublicKeyInfo))
		}
	}
	return out
}

// formerRoots returns the roots that the member has given up. A token of such a root must not lead
// back to the root, whose key may be stolen.
func formerRoots(dir string) (out []join.Hash, err error) {
	text, err := os.ReadFile(filepath.Join(dir, formerFile))
	if os.IsNotExist(err) {
		return nil, nil
	}
	for _, line := range strings.Fields(string(text)) {
		var hash join.Hash
		if raw, err := hex.DecodeString(line); err == nil && copy(hash[:], raw) == len(hash) {
			out = append(out, hash)
		}
	}
	return out, err
}

// noteFormer notes the roots of earlier that are not among the next ones.
func noteFormer(dir string, earlier, next *pki.Roots) error {
	former, err := formerRoots(dir)
	if err != nil {
		return err
	}
	known, now := len(former), keysOf(next)
	for _, hash := range keysOf(earlier) {
		if !slices.Contains(now, hash) && !slices.Contains(former, hash) {
			former = append(former, hash)
		}
	}
	if len(former) == known {
		return nil
	}
	var text strings.Builder
	for _, hash := range former {
		text.WriteString(hex.EncodeToString(hash[:]) + "\n")
	}
	return replace.File(filepath.Join(dir, formerFile), []byte(text.String()))
}
