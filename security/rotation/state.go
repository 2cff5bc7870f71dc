package rotation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrWaiting means that members have not converged, so that a step would separate them.
var ErrWaiting = errors.New("members have not converged")

// ErrStep means that a step is not possible now.
var ErrStep = errors.New("this step is not possible now")

// State is what a member has, or should have. Roots and keys are named by a part of their hash.
type State struct {
	// Roots are those that the member trusts. Issuer is the root of its own certificate.
	Roots  []string
	Issuer string
	// Authority is the root of the certificate with which a regional server issues. Empty: it
	// issues none.
	Authority string
	// Gossip and Probe are keys. The first one is in use.
	Gossip, Probe []string
	// EtcdRoots are those that the embedded etcd of a global server trusts until the server is
	// restarted. Empty: those of Roots.
	EtcdRoots []string
}

// Empty reports whether a state says nothing.
func (s *State) Empty() bool {
	return len(s.Roots) == 0 && s.Issuer == "" && len(s.Gossip) == 0 && len(s.Probe) == 0
}

// Lacks returns what a member lacks of what it should have; "" if it lacks nothing. An empty field
// of want says nothing. reported is false if the member has never reported what it has.
func Lacks(want, has *State, reported bool) string {
	if !reported {
		return "has not reported what it has"
	}
	var out []string
	if len(want.Roots) > 0 {
		if missing := without(want.Roots, has.Roots); len(missing) > 0 {
			out = append(out, "does not trust root "+strings.Join(missing, ", "))
		}
		if more := without(has.Roots, want.Roots); len(more) > 0 {
			out = append(out, "still trusts root "+strings.Join(more, ", "))
		}
	}
	if want.Issuer != "" && has.Issuer != want.Issuer {
		out = append(out, "has a certificate of root "+orNone(has.Issuer))
	}
	if want.Issuer != "" && has.Authority != "" && has.Authority != want.Issuer {
		out = append(out, "issues with a certificate of root "+has.Authority)
	}
	for _, ring := range []struct {
		name      string
		want, has []string
	}{{"gossip", want.Gossip, has.Gossip}, {"probes", want.Probe, has.Probe}} {
		if len(ring.want) > 0 && !slices.Equal(ring.want, ring.has) {
			out = append(out, fmt.Sprintf("has the keys %s for %s", orNone(strings.Join(ring.has, ", ")), ring.name))
		}
	}
	return strings.Join(out, "; ")
}

func orNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

// EtcdLacks returns what an etcd lacks that trusts the roots of its start until its server is
// restarted; "" if it lacks nothing. want are the roots that it should trust. note is false if the
// next change of the root would separate it from the others: a root vouches for the next one only, so
// an etcd that trusts neither of two roots accepts no certificate of the later one.
func EtcdLacks(want, has []string) (lacks string, note bool) {
	more := without(has, want)
	if len(want) == 0 || len(more) == 0 {
		return "", true
	}
	return fmt.Sprintf("its etcd trusts root %s until this server is restarted", strings.Join(more, ", ")), len(want) < 2 || len(more) < len(has)
}

// without returns what of a list is not in another.
func without(of, other []string) (out []string) {
	for _, s := range of {
		if !slices.Contains(other, s) {
			out = append(out, s)
		}
	}
	return out
}

// RenewAt returns when a member renews its certificate to get what it should have. since is when
// the member noticed that it lacks something. point is within [0, 1), so that the members of a
// federation do not all renew at the same time.
func RenewAt(since time.Time, spread time.Duration, point float64) time.Time {
	return since.Add(time.Duration(min(max(point, 0), 1) * float64(max(spread, 0))))
}

// Waiting are the members that hold back a step.
type Waiting struct {
	// Members is how many there are, and Some names a few of them, each with what it lacks.
	Members int
	Some    []string
	// Silent are regions that did not answer, so that nobody knows their members.
	Silent []string
}

// maxNamed bounds the members that an error names.
const maxNamed = 5

// check returns an error that names who holds back a step.
func (w *Waiting) check(step string) error {
	if w.Members == 0 && len(w.Silent) == 0 {
		return nil
	}
	var parts []string
	if w.Members > 0 {
		some := w.Some[:min(len(w.Some), maxNamed)]
		text := fmt.Sprintf("%d members: %s", w.Members, strings.Join(some, ", "))
		if w.Members > len(some) {
			text += ", …"
		}
		parts = append(parts, text)
	}
	if len(w.Silent) > 0 {
		parts = append(parts, "regions that did not answer: "+strings.Join(w.Silent, ", "))
	}
	return fmt.Errorf("%w: %s would separate them from the others: %s; wait for them, or give --force, after which they may have to join again", ErrWaiting, step, strings.Join(parts, "; "))
}
