package join

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Parts of a token's text, in bytes before they are encoded.
const (
	version     = "nusa1"
	idBytes     = 4
	secretBytes = 16
	caBytes     = 16
	maxToken    = 128 // bytes of a text that Parse reads
)

// RandomBytes is how much randomness New needs.
const RandomBytes = idBytes + secretBytes

// ErrToken is wrapped by every error of Parse. No error has a part of the secret.
var ErrToken = errors.New("not a join token")

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Hash is the SHA-256 of a secret, or of the public key (SubjectPublicKeyInfo) of a certificate.
type Hash [sha256.Size]byte

// HashOf returns the hash of a public key in DER.
func HashOf(publicKey []byte) Hash { return sha256.Sum256(publicKey) }

// Token is what a new member shows: nusa1.ID.SECRET.CA. The zero Token is none.
//
// The secret leaves a Token only by Reveal. The formats of fmt, the handlers of log/slog and
// encoding/json write a text without the secret. The field is a pointer, because fmt shows the
// fields of a Token that is in an unexported field of another struct.
type Token struct {
	id, ca string
	secret *string
}

// New returns a token of a federation whose root certificate has this public key.
func New(random [RandomBytes]byte, root Hash) Token {
	secret := encoding.EncodeToString(random[idBytes:])
	return Token{id: hex.EncodeToString(random[:idBytes]), ca: hex.EncodeToString(root[:caBytes]), secret: &secret}
}

// Parse reads the text of a token, with white space around the text.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxToken {
		return Token{}, fmt.Errorf("%w: %d bytes, allowed are 1 to %d: copy the whole token and nothing else", ErrToken, len(text), maxToken)
	}
	part := strings.Split(text, ".")
	switch {
	case len(part) != 4:
		return Token{}, fmt.Errorf("%w: %d parts with dots between them, not 4: copy the whole token", ErrToken, len(part))
	case part[0] != version:
		return Token{}, fmt.Errorf("%w: the text does not begin with %s.: this program reads no other version", ErrToken, version)
	case !isHex(part[1], idBytes):
		return Token{}, fmt.Errorf("%w: the second part must have %d digits of 0-9 and a-f: copy the token again", ErrToken, 2*idBytes)
	case !isHex(part[3], caBytes):
		return Token{}, fmt.Errorf("%w: the last part must have %d digits of 0-9 and a-f: copy the token again", ErrToken, 2*caBytes)
	}
	secret, err := encoding.DecodeString(part[2])
	if err != nil || len(secret) != secretBytes || encoding.EncodeToString(secret) != part[2] {
		return Token{}, fmt.Errorf("%w: the third part must have %d of a-z and 2-7: copy the token again", ErrToken, encoding.EncodedLen(secretBytes))
	}
	return Token{id: part[1], ca: part[3], secret: &part[2]}, nil
}

// isHex reports whether a text is n bytes in lower-case hexadecimal digits.
func isHex(s string, n int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == n && hex.EncodeToString(b) == s
}

// IsZero reports whether there is no token.
func (t Token) IsZero() bool { return t.secret == nil }

// ID returns the part that names the token. It may be shown.
func (t Token) ID() string { return t.id }

// Reveal returns the whole text, for the one time at which an operator sees a new token, and
// for the message that joins.
func (t Token) Reveal() string {
	if t.IsZero() {
		return ""
	}
	return strings.Join([]string{version, t.id, *t.secret, t.ca}, ".")
}

// Hash returns the hash of the secret.
func (t Token) Hash() Hash {
	if t.IsZero() {
		return Hash{}
	}
	return sha256.Sum256([]byte(*t.secret))
}

// Trusts reports whether a root certificate with this public key is that of the federation
// which gave the token. A new member accepts no other root at its first contact.
func (t Token) Trusts(root Hash) bool {
	return !t.IsZero() && t.ca == hex.EncodeToString(root[:caBytes])
}

// String returns the token without its secret.
func (t Token) String() string {
	if t.IsZero() {
		return "no join token"
	}
	return version + "." + t.id + ".…"
}

// GoString returns the same as String, for %#v.
func (t Token) GoString() string { return t.String() }

// MarshalText returns the same as String, for log/slog and encoding/json.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
