package global

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// ErrIdentities means that the identities of a server do not fit its federation.
var ErrIdentities = errors.New("identities of the federation")

// outsideKey is the key of the record that names the federation in the certificates of --identity.
const outsideKey = "identity/outside"

// issueEarly lets a server with --ca-cert issue its own identity before the store is open, so that
// the ports of its etcd are encrypted.
func issueEarly(s *server) error {
	if s.cfg.Secure == nil || s.cfg.Secure.CACert == "" {
		return nil
	}
	given, err := givenRoots(s.cfg.Secure)
	if err != nil {
		return err
	}
	s.issuing, s.cfg.Identity, err = openIssuing(&s.cfg, enroll.GivenRoot(given))
	return err
}

// openRoot decides whether this server issues identities, and reads or creates the root. A new
// federation gets its root before its id. So a federation with an id and without a root is an
// older one, or one that is not to have identities.
func openRoot(ctx context.Context, s *server) error {
	r := records{s.store, func() *leadershipTerm { return nil }}
	_, found, err := r.Get(ctx, enroll.AuthorityKey)
	if err != nil {
		return err
	}
	c := s.cfg.Secure
	switch {
	case c == nil && s.cfg.Identity != nil:
		return noteOutside(ctx, s, r)
	case c == nil && found > 0:
		return fmt.Errorf("%w: they are in use, so this server needs one: leave --insecure out", ErrIdentities)
	case c == nil:
		return nil
	case c.IfNew && found == 0:
		old, err := isOld(ctx, s, r)
		if old || err != nil {
			s.cfg.Secure, s.plain = nil, true
			return errors.Join(err, c.Exposed)
		}
	}
	given, err := givenRoots(c)
	if err != nil {
		return err
	}
	root, err := readRoot(ctx, r, c, given)
	if err != nil {
		return fmt.Errorf("root of the federation: %w", err)
	}
	if s.issuing == nil {
		s.issuing, s.cfg.Identity, err = openIssuing(&s.cfg, root)
		return err
	}
	s.issuing.now.Store(root)
	return nil
}

// isOld reports whether the federation has an id and no root. It returns an error if the federation
// has identities of --identity. The root is looked for after the id, because another server that
// begins the federation meanwhile stores the root first.
func isOld(ctx context.Context, s *server, r records) (bool, error) {
	name, _, err := r.Get(ctx, outsideKey)
	if err == nil && len(name) > 0 {
		err = fmt.Errorf("%w: they are of %s, and this server has none: give --identity, or --insecure to run without", ErrIdentities, name)
	}
	if err != nil {
		return false, err
	}
	_, begun, _, err := s.store.Get(ctx, state.ClusterKey)
	if err != nil || !begun {
		return false, err
	}
	_, found, err := r.Get(ctx, enroll.AuthorityKey)
	return found == 0, err
}

// noteOutside stores the name of the federation in the certificates of --identity, unless the store
// has one.
func noteOutside(ctx context.Context, s *server, r records) error {
	name := []byte(s.cfg.Identity.ID().Federation)
	err := r.Change(ctx, enroll.Change{Checks: []enroll.Check{{Key: outsideKey}}, Puts: []enroll.Put{{Key: outsideKey, Value: name}}})
	if errors.Is(err, enroll.ErrChanged) {
		return nil
	}
	return err
}

// mayBegin returns an error if the store has no root, and the servers have identities of another
// root: those members would all be refused.
func mayBegin(ctx context.Context, r records, c *Secure, given *pki.Authority) error {
	outside, _, err := r.Get(ctx, outsideKey)
	if err != nil {
		return err
	}
	if given != nil {
		if len(outside) > 0 && string(outside) != given.ID.Federation {
			return fmt.Errorf("%w: they are of %s, and --ca-cert is the root of %s: give the root of %[2]s", ErrIdentities, outside, given.ID.Federation)
		}
		return nil
	}
	if len(outside) > 0 {
		return fmt.Errorf("%w: they are of %s, and a new root would refuse all of them: give the root of %[2]s with --ca-cert and --ca-key, or go on with --identity", ErrIdentities, outside)
	}
	if own, err := trust.Open(trust.Options{Dir: c.Dir}); err == nil {
		return fmt.Errorf("%w: %s is of %s, and the store has no root: restore a copy of the store that has the root, or give the root with --ca-cert and --ca-key", ErrIdentities, c.Dir, own.ID().Federation)
	}
	return nil
}

// checkFederation returns an error if this server has an identity of another root.
func checkFederation(c *Secure, federation string) error {
	own, err := trust.Open(trust.Options{Dir: c.Dir})
	if err != nil || own.ID().Federation == federation {
		return nil // a damaged identity is written again
	}
	return fmt.Errorf("%w: %s is of %s, and the root is of %s: give another --data-dir, or remove that folder", ErrIdentities, c.Dir, own.ID().Federation, federation)
}

// remindEvery is how often the log says that a federation has no identities.
const remindEvery = time.Hour

// remind logs at the start and each hour that an older federation has no identities.
func remind(ctx context.Context, s *server) error {
	for s.plain {
		s.log.Warn("this federation has no identities: every process that reaches its ports may run commands on every node",
			"advice", "start the global servers with --secure, and let the other servers and the agents join with tokens; --insecure ends these lines")
		if !wait.For(ctx, remindEvery) {
			break
		}
	}
	return nil
}
