package weblogin

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/oauth2"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// life is how long a person may take for the login at a provider.
	life = 10 * time.Minute
	// maxFlows bounds the logins in progress, and maxOfAddress those of clients at one place (placeOf), so
	// that one client cannot keep out all others.
	maxFlows, maxOfAddress = 1024, 128
)

var (
	// errFull: there are too many logins in progress.
	errFull = errors.New("too many logins are in progress: try again in some minutes")
	// errUnknown: there is no such login, or it belongs to another browser. A caller must not learn which.
	errUnknown = fmt.Errorf("this is not the answer to a login that this browser began here within %s: log in again", life)
)

// flow is a login in progress.
type flow struct {
	// browser is the secret in the cookie of the browser that began the login.
	browser string
	// verifier is the secret of PKCE, and nonce that of the ID token.
	verifier, nonce string
	// origin is that of the page to which the provider sends the browser.
	origin   string
	provider *nusav1.AuthProvider
	endpoint oauth2.Endpoint
	// from is the place of the client.
	from  string
	began time.Time
}

// flows are the logins in progress, by state. They are safe for concurrent use.
type flows struct {
	mu  sync.Mutex
	all map[string]*flow
}

// room returns errFull if there is no room for another login from an address. It forgets old logins.
func (f *flows) room(from string, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.roomLocked(from, now)
}

func (f *flows) roomLocked(from string, now time.Time) error {
	n := 0
	for state, old := range f.all {
		if now.Sub(old.began) >= life {
			delete(f.all, state)
		} else if old.from == from {
			n++
		}
	}
	if len(f.all) >= maxFlows || n >= maxOfAddress {
		return errFull
	}
	return nil
}

// add remembers a login.
func (f *flows) add(state string, fl *flow, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.roomLocked(fl.from, now); err != nil {
		return err
	}
	if f.all == nil {
		f.all = map[string]*flow{}
	}
	fl.began = now
	f.all[state] = fl
	return nil
}

// knows reports whether a browser has a login in progress.
func (f *flows) knows(browser string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.all {
		if same(fl.browser, browser) {
			return true
		}
	}
	return false
}

// take returns the login of a browser, and forgets the login: a state works once. Another browser cannot
// end the login.
func (f *flows) take(state, browser, origin string, now time.Time) (*flow, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.all[state]
	if fl == nil || !same(fl.browser, browser) || fl.origin != origin {
		return nil, errUnknown
	}
	delete(f.all, state)
	if now.Sub(fl.began) >= life {
		return nil, errUnknown
	}
	return fl, nil
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
