package authz

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
)

// The parts of an access token, in bytes before they are encoded.
const (
	accessorBytes = 5
	secretBytes   = 20
	tokenPrefix   = "nusa_"
)

// TokenRandom is how many random bytes NewToken needs.
const TokenRandom = accessorBytes + secretBytes

// ErrToken is wrapped by the errors of ParseToken. No error has a part of a secret.
var ErrToken = errors.New("not an access token")

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// TokenHash is the SHA-256 of a token's secret.
type TokenHash [sha256.Size]byte

// Equal compares a hash with a stored one, in a time that does not depend on their bytes.
func (h TokenHash) Equal(stored []byte) bool { return subtle.ConstantTimeCompare(h[:], stored) == 1 }

// NewToken returns the text of a token (nusa_ACCESSOR_SECRET), its accessor, and the hash of its
// secret.
func NewToken(random [TokenRandom]byte) (text, accessor string, hash TokenHash) {
	accessor = encoding.EncodeToString(random[:accessorBytes])
	secret := encoding.EncodeToString(random[accessorBytes:])
	return tokenPrefix + accessor + "_" + secret, accessor, sha256.Sum256([]byte(secret))
}

// ParseToken returns the accessor of a token and the hash of its secret.
func ParseToken(text string) (accessor string, hash TokenHash, err error) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	accessor, secret, parts := strings.Cut(rest, "_")
	if !ok || !parts || !encoded(accessor, accessorBytes) || !encoded(secret, secretBytes) {
		return "", TokenHash{}, fmt.Errorf("%w: a token is %sACCESSOR_SECRET: copy the whole token and nothing else", ErrToken, tokenPrefix)
	}
	return accessor, sha256.Sum256([]byte(secret)), nil
}

// encoded reports whether a text is the encoding of n bytes.
func encoded(text string, n int) bool {
	raw, err := encoding.DecodeString(text)
	return err == nil && len(raw) == n && encoding.EncodeToString(raw) == text
}
