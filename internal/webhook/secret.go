package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of a secret, in bytes, as the specification has them.
const (
	minSecret = 24
	maxSecret = 64
	newSecret = 32
)

// secretPrefix marks a text as a secret of a webhook.
const secretPrefix = "whsec_"

// ErrSecret is wrapped by the errors of ParseSecret. They never contain the text.
var ErrSecret = errors.New("a secret is whsec_ and the base64 text of 24 to 64 bytes")

// Secret is a key that signs. It does not show itself when it is printed.
type Secret struct{ key []byte }

// NewSecret makes a random secret.
func NewSecret() Secret {
	key := make([]byte, newSecret)
	_, _ = rand.Read(key) // never fails
	return Secret{key}
}

// ParseSecret reads the text form of a secret.
func ParseSecret(text string) (Secret, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), secretPrefix)
	if !ok {
		return Secret{}, fmt.Errorf("%w: the prefix %s is missing", ErrSecret, secretPrefix)
	}
	key, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(rest, "="))
	if err != nil {
		return Secret{}, fmt.Errorf("%w: it is not base64", ErrSecret)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return Secret{}, fmt.Errorf("%w: it has %d bytes", ErrSecret, len(key))
	}
	return Secret{key}, nil
}

// Reveal returns the text form of the secret.
func (s Secret) Reveal() string { return secretPrefix + base64.StdEncoding.EncodeToString(s.key) }

// String implements fmt.Stringer.
func (s Secret) String() string { return secretPrefix + "(hidden)" }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return s.String() }

// Sign returns the value of the header webhook-signature: one signature for each secret.
func Sign(secrets []Secret, id string, at time.Time, body []byte) string {
	out := make([]string, 0, len(secrets))
	for _, s := range secrets {
		mac := hmac.New(sha256.New, s.key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		out = append(out, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(out, " ")
}
