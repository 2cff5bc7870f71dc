package workload

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// The reasons why the Workload API gives this process no identity. The text says what to do.
var (
	// ErrSilent means that the Workload API does not answer.
	ErrSilent = errors.New("the Workload API does not answer")
	// ErrNotRegistered means that the Workload API has no identity for this process, or only others.
	ErrNotRegistered = errors.New("this process is not registered")
	// ErrUnusable means that peers would refuse the identity.
	ErrUnusable = errors.New("peers would refuse the identity")
)

// maxNamed bounds the identities that an error names.
const maxNamed = 5

// anyFederation stands for the federation in messages, while the process does not know it.
const anyFederation = "TRUST-DOMAIN"

// choose returns the credentials of an answer that are those of wanted, an ID without a federation.
func choose(answer *workloadapi.X509Context, wanted identity.ID, now time.Time) (pki.Credentials, error) {
	var others []string
	for _, svid := range answer.SVIDs {
		id, err := identity.Parse(svid.ID.String())
		federation := id.Federation
		id.Federation = ""
		if err != nil && svid.ID.Path() == strings.TrimPrefix(wanted.String(), "spiffe://") {
			return pki.Credentials{}, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		if err != nil || id != wanted {
			others = append(others, svid.ID.String())
			continue
		}
		bundle, ok := answer.Bundles.Get(svid.ID.TrustDomain())
		if !ok {
			return pki.Credentials{}, fmt.Errorf("%w: %s came without the roots of %s", ErrUnusable, svid.ID, federation)
		}
		roots, err := pki.NewRoots(bundle.X509Authorities()...)
		if err == nil {
			_, err = pki.Verify(svid.Certificates, roots, now)
		}
		if err != nil {
			return pki.Credentials{}, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		return pki.Credentials{Chain: svid.Certificates, Key: svid.PrivateKey, Roots: roots}, nil
	}
	return pki.Credentials{}, notRegistered(wanted, others)
}

// notRegistered returns the error about a process that has only other identities, or none.
func notRegistered(wanted identity.ID, others []string) error {
	slices.Sort(others)
	others = slices.Compact(others)
	wanted.Federation = anyFederation
	has := "none"
	if n := len(others); n > 0 {
		// The identities of a process are of one trust domain, as a rule.
		if domain, _, ok := strings.Cut(strings.TrimPrefix(others[0], "spiffe://"), "/"); ok {
			wanted.Federation = domain
		}
		has = strings.Join(others[:min(n, maxNamed)], ", ")
		if n > maxNamed {
			has += fmt.Sprintf(" and %d more", n-maxNamed)
		}
	}
	return fmt.Errorf("%w: it needs the identity %s, and has %s: register an entry with that SPIFFE ID for this process", ErrNotRegistered, wanted, has)
}

// explain returns the reason of a failed call with what to do.
func explain(err error, wanted identity.ID) error {
	switch code := status.Code(err); {
	case code == codes.PermissionDenied:
		return fmt.Errorf("%w (%w)", notRegistered(wanted, nil), err)
	case code == codes.Unknown && !errors.Is(err, io.EOF): // an answer that go-spiffe refuses
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return fmt.Errorf("%w: %w: look whether the SPIRE agent runs, and whether this user may open the socket", ErrSilent, err)
}

// sameReason reports whether two reasons are of one kind, so that one line in the log is enough.
func sameReason(a, b error) bool {
	for _, kind := range []error{ErrSilent, ErrNotRegistered, ErrUnusable} {
		if errors.Is(a, kind) || errors.Is(b, kind) {
			return errors.Is(a, kind) && errors.Is(b, kind)
		}
	}
	return (a == nil) == (b == nil)
}
