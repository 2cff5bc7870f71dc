package authz_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/security/authz"
)

// The worlds of the property tests are small, so that rules meet actions.
var (
	somePlaces   = []string{"a", "b", "ab"}
	somePatterns = []string{"*", "a", "a*", "?", "b"}
	someVerbs    = []string{"read", "stop"}
	someKinds    = []string{"job", "allocation"}
	someSubjects = []string{"operator/jane", "operator/*", "token/1"}
)

func some(all []string, least int) *rapid.Generator[[]string] {
	return rapid.SliceOfN(rapid.SampledFrom(all), least, 2)
}

var someRule = rapid.Custom(func(t *rapid.T) authz.Rule {
	r := authz.Rule{
		Effect: authz.Effect(rapid.IntRange(0, 1).Draw(t, "effect")),
		Verbs:  some(append(someVerbs, "*"), 1).Draw(t, "verbs"), Kinds: some(append(someKinds, "*"), 1).Draw(t, "kinds"),
		Namespaces: some(somePatterns, 0).Draw(t, "namespaces"), Regions: some(somePatterns, 0).Draw(t, "regions"),
	}
	// Every verb of the world is a verb of the kind allocation, but not of other kinds.
	switch rapid.IntRange(0, 9).Draw(t, "condition") {
	case 0:
		r.Condition, r.Holds = "request", func(a authz.Action) (bool, error) { return a.Request == true, nil }
	case 1:
		r.Condition, r.Holds = "fails", func(authz.Action) (bool, error) { return true, errors.New("fails") }
	case 2:
		r.Condition = "not compiled"
	}
	return r
})

var somePolicy = rapid.Custom(func(t *rapid.T) *authz.Policy {
	p := &authz.Policy{Version: 1}
	names := []string{"viewer"}
	for i := range rapid.IntRange(1, 3).Draw(t, "roles") {
		names = append(names, fmt.Sprintf("r%d", i))
		p.Roles = append(p.Roles, authz.Role{Name: names[i+1], Rules: rapid.SliceOfN(someRule, 0, 3).Draw(t, "rules")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "bindings") {
		p.Bindings = append(p.Bindings, authz.Binding{Role: rapid.SampledFrom(names).Draw(t, "role"), Subjects: some(someSubjects, 1).Draw(t, "subjects"),
			Namespaces: some(somePatterns, 0).Draw(t, "namespaces"), Regions: some(somePatterns, 0).Draw(t, "regions")})
	}
	return p
})

func somePrincipal(t *rapid.T, p *authz.Policy) authz.Principal {
	who := authz.Principal{Name: rapid.SampledFrom([]string{"operator/jane", "operator/joe", "token/1"}).Draw(t, "who")}
	if rapid.Bool().Draw(t, "carries") {
		who.Roles = []string{rapid.SampledFrom(p.Roles).Draw(t, "carried").Name}
		who.Namespaces, who.Regions = some(somePatterns, 0).Draw(t, "carried namespaces"), some(somePatterns, 0).Draw(t, "carried regions")
	}
	return who
}

func someAction(t *rapid.T) authz.Action {
	place := rapid.SampledFrom(append(slices.Clone(somePlaces), authz.Any, ""))
	return authz.Action{Verb: rapid.SampledFrom(someVerbs).Draw(t, "verb"), Kind: rapid.SampledFrom(someKinds).Draw(t, "kind"),
		Namespace: place.Draw(t, "namespace"), Region: place.Draw(t, "region"), Request: rapid.Bool().Draw(t, "request")}
}

// matches is a slow way to compare a pattern with a name.
func matches(pattern, name string) bool {
	text := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(pattern))
	return regexp.MustCompile("^" + text + "$").MatchString(name)
}

// oracle decides an action on one namespace and region: it collects all rules of the principal,
// and returns true if one allows the action and none denies it.
func oracle(who authz.Principal, a authz.Action, p *authz.Policy) bool {
	among := func(patterns []string, name string) bool {
		return len(patterns) == 0 || slices.ContainsFunc(patterns, func(s string) bool { return matches(s, name) })
	}
	hits := func(r authz.Rule) bool {
		if !among(r.Verbs, a.Verb) || !among(r.Kinds, a.Kind) || !among(r.Namespaces, a.Namespace) || !among(r.Regions, a.Region) {
			return false
		}
		switch r.Condition {
		case "":
			return true
		case "request":
			return a.Request == true
		}
		return r.Effect == authz.Deny
	}
	allowed, deniedBy := false, false
	role := func(name string) {
		if name == "viewer" && a.Verb == "read" {
			allowed = true
		}
		for _, r := range p.Roles {
			for _, rule := range r.Rules {
				if r.Name == name && hits(rule) {
					allowed = allowed || rule.Effect == authz.Allow
					deniedBy = deniedBy || rule.Effect == authz.Deny
				}
			}
		}
	}
	for _, name := range who.Roles {
		if among(who.Namespaces, a.Namespace) && among(who.Regions, a.Region) {
			role(name)
		}
	}
	for _, b := range p.Bindings {
		if among(b.Subjects, who.Name) && among(b.Namespaces, a.Namespace) && among(b.Regions, a.Region) {
			role(b.Role)
		}
	}
	return allowed && !deniedBy
}

// TestOracle: Decide answers as the oracle does, and an action on every place is allowed only
// if the action is allowed at each place.
func TestOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := somePolicy.Draw(t, "policy")
		who, a := somePrincipal(t, p), someAction(t)
		got := authz.Decide(who, a, p).Allowed
		namespaces, regions := []string{a.Namespace}, []string{a.Region}
		if a.Namespace == "" || a.Namespace == authz.Any {
			namespaces = somePlaces
		}
		if a.Region == "" || a.Region == authz.Any {
			regions = somePlaces
		}
		want := true
		for _, n := range namespaces {
			for _, r := range regions {
				at := a
				at.Namespace, at.Region = n, r
				want = want && oracle(who, at, p)
			}
		}
		every := len(namespaces) > 1 || len(regions) > 1
		if got && !want || !every && got != want {
			t.Fatalf("%s, %s: %t, want %t", who.Name, a, got, want)
		}
	})
}

// TestOrder: the order of roles, rules and bindings has no effect. The decision names the same
// rule if only roles and bindings change their order.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := somePolicy.Draw(t, "policy")
		who, a := somePrincipal(t, p), someAction(t)
		want := authz.Decide(who, a, p)
		q := &authz.Policy{Version: p.Version, Roles: rapid.Permutation(p.Roles).Draw(t, "roles"), Bindings: rapid.Permutation(p.Bindings).Draw(t, "bindings")}
		if got := authz.Decide(who, a, q); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
		for i := range q.Roles {
			q.Roles[i].Rules = rapid.Permutation(q.Roles[i].Rules).Draw(t, "rules")
		}
		if got := authz.Decide(who, a, q); got.Allowed != want.Allowed {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}

// TestMore: one more rule that allows never takes an action away, and one more rule that denies
// never gives one.
func TestMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := somePolicy.Draw(t, "policy")
		who, a, more := somePrincipal(t, p), someAction(t), someRule.Draw(t, "more")
		was := authz.Decide(who, a, p).Allowed
		i := rapid.IntRange(0, len(p.Roles)-1).Draw(t, "to")
		p.Roles[i].Rules = append(slices.Clone(p.Roles[i].Rules), more)
		is := authz.Decide(who, a, p).Allowed
		if was && !is && more.Effect == authz.Allow || !was && is && more.Effect == authz.Deny {
			t.Fatalf("%s: allowed %t, and with %s: %t", a, was, more, is)
		}
	})
}

// TestUnconditional: an answer that is known does not depend on what conditions read.
func TestUnconditional(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := somePolicy.Draw(t, "policy")
		who, a := somePrincipal(t, p), someAction(t)
		allowed, known := authz.Unconditional(who, a, p)
		for _, request := range []any{true, false} {
			a.Request = request
			if got := authz.Decide(who, a, p).Allowed; known && got != allowed {
				t.Fatalf("%s with the request %t: %t, want %t", a, request, got, allowed)
			}
		}
	})
}

// TestDepends: a condition that reads the job of an action without one decides nothing, unless another
// rule decides anyway.
func TestDepends(t *testing.T) {
	holds := func(a authz.Action) (bool, error) {
		if a.Request == nil {
			return false, authz.ErrDepends
		}
		return a.Request == true, nil
	}
	rule := func(e authz.Effect, condition string) authz.Rule {
		r := authz.Rule{Effect: e, Verbs: []string{"submit"}, Kinds: []string{"job"}, Condition: condition}
		if condition != "" {
			r.Holds = holds
		}
		return r
	}
	for name, c := range map[string]struct {
		rules                     []authz.Rule
		depends, unknown, yes, no bool // the answers without a job, and with one for which the condition holds or not
	}{
		"allow if":                {[]authz.Rule{rule(authz.Allow, "c")}, true, false, true, false},
		"allow, deny if":          {[]authz.Rule{rule(authz.Allow, ""), rule(authz.Deny, "c")}, true, false, false, true},
		"allow if, allow":         {[]authz.Rule{rule(authz.Allow, "c"), rule(authz.Allow, "")}, false, true, true, true},
		"deny if":                 {[]authz.Rule{rule(authz.Deny, "c")}, false, false, false, false},
		"allow if, deny":          {[]authz.Rule{rule(authz.Allow, "c"), rule(authz.Deny, "")}, false, false, false, false},
		"allow if, deny if":       {[]authz.Rule{rule(authz.Allow, "c"), rule(authz.Deny, "c")}, true, false, false, false},
		"allow with a bad effect": {[]authz.Rule{{Effect: authz.Allow, Verbs: []string{"submit"}, Kinds: []string{"job"}, Condition: "c"}}, false, false, false, false},
	} {
		p := &authz.Policy{Roles: []authz.Role{{Name: "r", Rules: c.rules}}}
		for request, want := range map[any]bool{nil: c.unknown, true: c.yes, false: c.no} {
			d := authz.Decide(authz.Principal{Name: "operator/jane", Roles: []string{"r"}}, authz.Action{Verb: "submit", Kind: "job", Request: request}, p)
			if d.Allowed != want || d.Depends != (request == nil && c.depends) {
				t.Errorf("%s, request %v: %+v", name, request, d)
			}
		}
	}
}
