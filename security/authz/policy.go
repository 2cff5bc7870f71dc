package authz

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/glob"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// Bounds of a policy.
const (
	MaxRoles     = 256
	MaxRules     = 64   // of a role
	MaxList      = 64   // entries of each list of a rule or binding
	MaxBindings  = 2048 // Decide reads all bindings
	MaxCondition = 4096 // bytes
)

// ErrPolicy is wrapped by every error of Check.
var ErrPolicy = errors.New("not a valid policy")

// Effect says what a rule does to the actions that it matches.
type Effect uint8

// The effects. A rule without an effect denies.
const (
	Deny Effect = iota
	Allow
)

// String returns the name of the effect.
func (e Effect) String() string {
	if e == Allow {
		return "allow"
	}
	return "deny"
}

// Principal is who wants something: the path of an identity ("operator/jane"), the accessor of a
// token ("token/ACCESSOR") or a user ("user/SUBJECT@PROVIDER"), and the roles that the credential
// itself carries.
type Principal struct {
	Name string
	// Credential distinguishes credentials of the same principal that carry different roles. It is
	// the accessor of a token, and empty for a certificate.
	Credential string
	Roles      []string
	// Namespaces and Regions narrow the carried roles, like those of a Binding.
	Namespaces, Regions []string
}

// Rule allows or denies actions. A rule matches an action if each list matches and the
// condition holds.
type Rule struct {
	Effect Effect
	// Verbs and Kinds are names, or Any.
	Verbs, Kinds []string
	// Namespaces and Regions are patterns (internal/glob). An empty list matches all, also
	// objects outside of namespaces or regions.
	Namespaces, Regions []string
	// Condition is the text of an expression about the request. The loader of the policy
	// compiles the text to Holds. If a rule with a condition has no Holds, or Holds fails, an
	// allowing rule does not match and a denying rule matches.
	Condition string
	Holds     func(Action) (bool, error)
}

// String returns the rule for people, for example "deny exec of allocation in namespaces pay-*".
func (r Rule) String() string {
	out := fmt.Sprintf("%s %s of %s", r.Effect, strings.Join(r.Verbs, ","), strings.Join(r.Kinds, ","))
	if len(r.Namespaces) > 0 {
		out += " in namespaces " + strings.Join(r.Namespaces, ",")
	}
	if len(r.Regions) > 0 {
		out += " in regions " + strings.Join(r.Regions, ",")
	}
	if r.Condition != "" {
		out += " if " + r.Condition
	}
	return out
}

// Role is a named list of rules. Their order has no effect on who may do what.
type Role struct {
	Name  string
	Rules []Rule
}

// Binding gives a role to principals.
type Binding struct {
	Role string
	// Subjects are patterns of the names of principals.
	Subjects []string
	// Namespaces and Regions narrow every rule of the role, also those that deny. An empty list
	// narrows nothing. A role that is narrowed to namespaces says nothing about kinds without
	// namespaces, for example nodes: give the principals a second role for these.
	Namespaces, Regions []string
}

// Policy is one version of the roles of a federation and of who has them. Policies of a higher
// version replace those of a lower version.
type Policy struct {
	Version  uint64
	Roles    []Role
	Bindings []Binding
}

// Check returns an error if a policy is too large, or names what does not exist. Decide is
// given only policies that Check accepts.
func (p *Policy) Check() error {
	if len(p.Roles) > MaxRoles || len(p.Bindings) > MaxBindings {
		return fmt.Errorf("%w: %d roles and %d bindings, at most %d and %d", ErrPolicy, len(p.Roles), len(p.Bindings), MaxRoles, MaxBindings)
	}
	seen := map[string]bool{}
	for _, r := range p.Roles {
		switch {
		case !identity.ValidRegion(r.Name):
			return fmt.Errorf("%w: %q is not a name of a role: use 1 to 63 of a-z, 0-9 and -, starting with a letter", ErrPolicy, r.Name)
		case slices.Contains(Builtin(), r.Name):
			return fmt.Errorf("%w: role %s is built in and cannot change: choose another name", ErrPolicy, r.Name)
		case seen[r.Name]:
			return fmt.Errorf("%w: role %s is there twice: merge the two", ErrPolicy, r.Name)
		case len(r.Rules) > MaxRules:
			return fmt.Errorf("%w: role %s has %d rules, at most %d: make two roles", ErrPolicy, r.Name, len(r.Rules), MaxRules)
		}
		seen[r.Name] = true
		for i, rule := range r.Rules {
			if err := rule.check(); err != nil {
				return fmt.Errorf("%w: role %s, rule %d: %w", ErrPolicy, r.Name, i+1, err)
			}
		}
	}
	for i, b := range p.Bindings {
		err := errors.Join(list("subjects", b.Subjects, 1, glob.Check), list("namespaces", b.Namespaces, 0, glob.Check), list("regions", b.Regions, 0, glob.Check))
		if _, ok := p.roleOf(b.Role); !ok {
			err = fmt.Errorf("role %q does not exist: define the role first", b.Role)
		}
		if err != nil {
			return fmt.Errorf("%w: binding %d of role %s: %w", ErrPolicy, i+1, b.Role, err)
		}
	}
	return nil
}

func (r Rule) check() error {
	if r.Effect > Allow {
		return fmt.Errorf("effect %d is neither allow nor deny", r.Effect)
	}
	if len(r.Condition) > MaxCondition {
		return fmt.Errorf("the condition has %d bytes, at most %d", len(r.Condition), MaxCondition)
	}
	if r.Holds != nil && r.Condition == "" {
		return errors.New("the compiled condition has no text")
	}
	knownKind := func(name string) error {
		if _, ok := kindOf(name); !ok && name != Any {
			return fmt.Errorf("kind %q does not exist: use %s or *", name, kindNames())
		}
		return nil
	}
	knownVerb := func(verb string) error {
		has := func(k Kind) bool {
			return slices.Contains(k.Verbs, verb) && (slices.Contains(r.Kinds, k.Name) || slices.Contains(r.Kinds, Any))
		}
		if verb != Any && !slices.ContainsFunc(kinds, has) {
			return fmt.Errorf("none of the rule's kinds (%s) has the verb %q", strings.Join(r.Kinds, ", "), verb)
		}
		return nil
	}
	return errors.Join(list("kinds", r.Kinds, 1, knownKind), list("verbs", r.Verbs, 1, knownVerb),
		list("namespaces", r.Namespaces, 0, glob.Check), list("regions", r.Regions, 0, glob.Check))
}

// list checks the length and the entries of a list.
func list(what string, entries []string, least int, check func(string) error) error {
	if len(entries) < least || len(entries) > MaxList {
		return fmt.Errorf("%d %s, allowed are %d to %d", len(entries), what, least, MaxList)
	}
	for _, e := range entries {
		if err := check(e); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}
