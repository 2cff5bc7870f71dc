package join

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Root is the hash of a federation's root certificate, for an agent that joins without a token. The zero
// Root is none.
type Root struct{ text string }

// ParseRoot reads the hash of a root: 64 hexadecimal digits.
func ParseRoot(text string) (Root, error) {
	text = strings.ToLower(strings.TrimSpace(text))
	if !isHex(text, sha256.Size) {
		return Root{}, fmt.Errorf("%.80q is not the hash of a root, which has %d digits of 0-9 and a-f: 'nusa region join-policy' shows the hash", text, 2*sha256.Size)
	}
	return Root{text}, nil
}

// IsZero reports whether there is no hash.
func (r Root) IsZero() bool { return r.text == "" }

// Trusts reports whether a root certificate with this public key is the one with the hash.
func (r Root) Trusts(root Hash) bool { return r.text == hex.EncodeToString(root[:]) }
