package oidc

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The reasons why a login fails.
var (
	// ErrRefused means that the ID token does not prove a login at the provider.
	ErrRefused = errors.New("the login is refused")
	// ErrUnreached means that the provider does not answer.
	ErrUnreached = errors.New("the provider does not answer")
	// ErrBusy means that there are too many logins.
	ErrBusy = errors.New("too many logins: try again later")
)

const (
	// maxIDToken bounds an ID token, in bytes.
	maxIDToken = 16 << 10
	// fresh is how long the endpoints of a provider are remembered.
	fresh = time.Hour
	// maxBusy bounds the logins in progress.
	maxBusy = 16
	// maxLogins bounds the logins of a user within maxAge, because each one is stored in all regions.
	// maxUsers bounds the users whose logins are counted.
	maxLogins, maxUsers = 20, 4096
)

// Verifier verifies ID tokens. The zero Verifier is ready. It is safe for concurrent use.
type Verifier struct {
	// Now returns the time. Default: time.Now.
	Now func() time.Time

	mu sync.Mutex
	// known are the endpoints of providers, by name.
	known map[string]known
	busy  int
	// logins counts the logins of users since began.
	logins map[string]int
	began  time.Time
}

// known are the endpoints of a provider as it was stored.
type known struct {
	stored   *nusav1.AuthProvider
	provider *oidc.Provider
	at       time.Time
}

// Verify returns the user that an ID token names. nonce is the secret of the login's nonce, or empty
// for a login without one.
func (v *Verifier) Verify(ctx context.Context, p *nusav1.AuthProvider, idToken, nonce string) (*User, error) {
	// One form only: otherwise the same signed claims could have several texts.
	if len(idToken) > maxIDToken || strings.Count(idToken, ".") != 2 || !isToken(idToken) {
		return nil, fmt.Errorf("%w: the ID token has %d bytes, and is not a JWT of at most %d bytes", ErrRefused, len(idToken), maxIDToken)
	}
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	provider, err := v.endpoints(ctx, p)
	if err != nil {
		return nil, err
	}
	token, err := provider.Verifier(&oidc.Config{ClientID: p.GetClientId(), Now: v.now}).Verify(ctx, idToken)
	switch {
	case err != nil && strings.Contains(err.Error(), "fetching keys"):
		return nil, fmt.Errorf("%w: %s: %s", ErrUnreached, p.GetIssuer(), short(err))
	case err != nil:
		return nil, fmt.Errorf("%w: provider %s: %s", ErrRefused, p.GetName(), short(err))
	}
	user, err := v.user(p, token, nonce)
	if err == nil && !v.mayLogin(p.GetName(), user.Subject) {
		return nil, fmt.Errorf("%w: %s has logged in %d times within %s", ErrBusy, user.Subject, maxLogins, maxAge)
	}
	return user, err
}

// mayLogin counts a login. It reports whether the user has not logged in too often.
func (v *Verifier) mayLogin(provider, subject string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now, user := v.now(), provider+"/"+subject
	if age := now.Sub(v.began); v.logins == nil || age < 0 || age >= maxAge || len(v.logins) >= maxUsers && v.logins[user] == 0 {
		v.logins, v.began = map[string]int{}, now
	}
	v.logins[user]++
	return v.logins[user] <= maxLogins
}

// user returns the user of a verified ID token.
func (v *Verifier) user(p *nusav1.AuthProvider, token *oidc.IDToken, nonce string) (*User, error) {
	var signed json.RawMessage
	claims := map[string]any{}
	if err := errors.Join(token.Claims(&signed), token.Claims(&claims)); err != nil {
		return nil, fmt.Errorf("%w: claims: %s", ErrRefused, short(err))
	}
	err := checkTimes(token.IssuedAt, v.now())
	if err == nil {
		err = checkNonce(token.Nonce, nonce)
	}
	if err == nil {
		err = checkParty(claims, token.Audience, p.GetClientId())
	}
	if err != nil {
		return nil, err
	}
	out := &User{Until: token.IssuedAt.Add(maxAge + clockDifference), Claims: slices.Sorted(maps.Keys(claims))}
	hash := sha256.Sum256(signed)
	out.Hash = hash[:]
	out.Subject, err = subjectOf(p, claims)
	if err == nil {
		out.Roles, err = rolesOf(p, claims)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// isToken reports whether a text has the characters of a JWT only.
func isToken(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	}) < 0
}

func (v *Verifier) now() time.Time {
	if v.Now != nil {
		return v.Now()
	}
	return time.Now()
}

func (v *Verifier) enter() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy >= maxBusy {
		return fmt.Errorf("%w: %d are in progress", ErrBusy, v.busy)
	}
	v.busy++
	return nil
}

func (v *Verifier) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy--
}

// endpoints returns the endpoints of a provider. It asks the provider if they are not known, or not
// fresh.
func (v *Verifier) endpoints(ctx context.Context, p *nusav1.AuthProvider) (*oidc.Provider, error) {
	v.mu.Lock()
	k := v.known[p.GetName()]
	v.mu.Unlock()
	now := v.now()
	if k.provider != nil && proto.Equal(k.stored, p) && now.Sub(k.at) < fresh && !now.Before(k.at) {
		return k.provider, nil
	}
	provider, _, err := Discover(ctx, p)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known == nil || len(v.known) > 2*maxRules {
		v.known = map[string]known{}
	}
	v.known[p.GetName()] = known{p, provider, now}
	return provider, nil
}

// short returns the text of an error of a library, without the whole answer of a provider.
func short(err error) string {
	const most = 300
	text := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "oidc: ")), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
