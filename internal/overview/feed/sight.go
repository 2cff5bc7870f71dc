package feed

import (
	"context"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/overview"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// sight is what the caller of a stream may see. It changes with the caller's rights.
type sight struct {
	call *rights.Call
	set  *rights.Set
	// all: the caller may read every region. topology: and the matrix.
	all, topology bool
	allowed       map[authz.Action]bool
	// changes counts the changes of the rights.
	changes int
}

func newSight(ctx context.Context) *sight {
	s := &sight{call: rights.Of(ctx), all: true, topology: true}
	s.renew()
	return s
}

// renew looks whether the rights have changed.
func (s *sight) renew() {
	if s.call == nil {
		return
	}
	filtered := s.call.Filtered() // notes that this handler decides
	set, _ := s.call.Standing()
	if set == s.set {
		return
	}
	s.set, s.allowed, s.changes = set, map[authz.Action]bool{}, s.changes+1
	s.all = !filtered && s.may("region", "", "")
	s.topology = s.may("topology", "", "")
}

// may reports whether the caller may read an object.
func (s *sight) may(kind, namespace, region string) bool {
	if s.call == nil {
		return true
	}
	if region == "" {
		region = s.call.Region
	}
	a := authz.Action{Verb: "read", Kind: kind, Namespace: namespace, Region: region}
	allowed, known := s.allowed[a]
	if !known {
		set, who := s.call.Standing()
		allowed = set.Allowed(who, a)
		s.allowed[a] = allowed
	}
	return allowed
}

func (s *sight) job(namespace string) bool { return s.may("job", namespace, "") }

// regions leaves out the regions that the caller may not read. It returns an earlier result
// if nothing has changed.
func (s *sight) regions(all, was overview.Section) overview.Section {
	if s.all {
		return all
	}
	return keep(all, was, func(e *overview.Entry) bool { return s.may("region", "", e.Key) })
}

// due leaves out what concerns regions and jobs that the caller may not read.
func (s *sight) due(all, was overview.Section) overview.Section {
	if s.call == nil {
		return all
	}
	return keep(all, was, func(e *overview.Entry) bool {
		d, ok := e.Value.(*nusav1.OverviewDue)
		if !ok {
			return false
		}
		if namespace, _, isJob := strings.Cut(d.GetSubject(), "/"); isJob {
			return s.job(namespace)
		}
		return s.all || s.may("region", "", d.GetSubject())
	})
}

// errors leaves out the errors of regions that the caller may not read.
func (s *sight) errors(all, was overview.Section) overview.Section {
	if s.all {
		return all
	}
	return keep(all, was, func(e *overview.Entry) bool { return e.Key == "" || s.may("region", "", e.Key) })
}

// keep returns the entries that may be seen: was, if these are the same.
func keep(all, was overview.Section, may func(*overview.Entry) bool) overview.Section {
	var out overview.Section
	same := true
	for _, e := range all {
		if !may(e) {
			continue
		}
		same = same && len(out) < len(was) && was[len(out)] == e
		out = append(out, e)
	}
	if same && len(out) == len(was) {
		return was
	}
	return out
}
