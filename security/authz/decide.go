package authz

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/glob"
)

// ErrDepends is wrapped by the error of a condition that reads the job of an action without one.
var ErrDepends = errors.New("it depends on the job")

// Decision is the answer to an action.
type Decision struct {
	Allowed bool
	// Rule is the rule that decided, or empty if no rule matches.
	Rule string
	// Reason names the principal, the action, and the rule or that none allows the action.
	Reason string
	// Depends: a condition reads the job, which the action lacks. Allowed is false.
	Depends bool
}

// Step is what Explain found about one rule of a principal.
type Step struct {
	Role   string
	Number int // of the rule in its role, from 1
	Rule   Rule
	// Given is the number of the binding that gave the role, from 1, or 0 for a role that the
	// credential carries.
	Given int
	// Misses is why the rule does not match, or empty.
	Misses string
}

// name names the rule for messages.
func (s Step) name() string { return fmt.Sprintf("rule %d of role %s (%s)", s.Number, s.Role, s.Rule) }

// Decide returns whether a principal may do something. A matching rule that denies wins over
// all that allow, and what no rule allows is denied. The order of roles, rules and bindings
// has no effect on that. An action of an unknown kind or verb is denied to all.
func Decide(who Principal, a Action, p *Policy) Decision {
	a, refused := admit(who, a, p)
	if refused != "" {
		return denied(who, a, "", refused)
	}
	var first found
	each(who, p, func(s Step, b *Binding) {
		misses, depends := misses(s.Rule, b, a)
		switch {
		case depends && s.Rule.Effect == Deny:
			first.mayDeny.take(s)
		case depends:
			first.mayAllow.take(s)
		case misses != "":
		case s.Rule.Effect == Deny:
			first.deny.take(s)
		default:
			first.allow.take(s)
		}
	})
	return first.decision(who, a, p)
}

// best is the first rule of some in the order of compare, or nil.
type best struct{ step *Step }

func (b *best) take(s Step) {
	if b.step == nil || before(s, *b.step) {
		b.step = &s
	}
}

// found are the rules that match an action. Whether mayDeny and mayAllow match depends on the job.
type found struct{ allow, deny, mayAllow, mayDeny best }

func (f found) decision(who Principal, a Action, p *Policy) Decision {
	depends := func(s *Step) Decision {
		return Decision{Rule: s.name(), Depends: true, Reason: fmt.Sprintf("whether %s may %s depends on the job: %s", who.Name, a, s.name())}
	}
	allowed, maybe := f.allow.step, f.mayAllow.step
	switch {
	case f.deny.step != nil:
		return denied(who, a, f.deny.step.name(), f.deny.step.name()+" denies this")
	case f.mayDeny.step != nil && (allowed != nil || maybe != nil):
		return depends(f.mayDeny.step)
	case allowed != nil:
		return Decision{Allowed: true, Rule: allowed.name(), Reason: fmt.Sprintf("%s may %s: %s allows this", who.Name, a, allowed.name())}
	case maybe != nil:
		return depends(maybe)
	}
	has := "the principal has no roles"
	if roles := RolesOf(who, p); len(roles) > 0 {
		has = "the roles are " + strings.Join(roles, ", ")
	}
	return denied(who, a, "", "no rule allows this: "+has)
}

// Unconditional returns whether a principal may do something, if that does not depend on conditions.
// Otherwise known is false.
func Unconditional(who Principal, a Action, p *Policy) (allowed, known bool) {
	a, refused := admit(who, a, p)
	if refused != "" {
		return false, true
	}
	denied, conditional := false, false
	each(who, p, func(s Step, b *Binding) {
		switch {
		case misplaced(s.Rule, b, a) != "":
		case s.Rule.Condition != "":
			conditional = true
		case s.Rule.Effect == Deny:
			denied = true
		default:
			allowed = true
		}
	})
	return allowed && !denied, denied || !conditional
}

// Explain returns the decision, and what each rule of the principal's roles said. Steps of the
// same rule that different bindings gave are listed apart.
func Explain(who Principal, a Action, p *Policy) (Decision, []Step) {
	d := Decide(who, a, p)
	a, refused := admit(who, a, p)
	if refused != "" {
		return d, nil
	}
	var out []Step
	each(who, p, func(s Step, b *Binding) {
		s.Misses, _ = misses(s.Rule, b, a)
		out = append(out, s)
	})
	slices.SortStableFunc(out, compare)
	return d, out
}

// RolesOf returns the names of the roles of a principal: those that the credential carries and
// those of the bindings, sorted.
func RolesOf(who Principal, p *Policy) []string {
	out := slices.Clone(who.Roles)
	for _, b := range p.Bindings {
		if b.Has(who) {
			out = append(out, b.Role)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func denied(who Principal, a Action, rule, reason string) Decision {
	return Decision{Rule: rule, Reason: fmt.Sprintf("%s may not %s: %s", who.Name, a, reason)}
}

// admit returns the normal form of an action, or why the action is denied before any rule is
// read. A role that does not exist may have had rules that deny, so a principal that carries
// such a role may do nothing.
func admit(who Principal, a Action, p *Policy) (out Action, refused string) {
	a, known := a.normal()
	a.By = who.Name
	if !known {
		return a, fmt.Sprintf("there is no verb %q of a kind %q", a.Verb, a.Kind)
	}
	if who.Name == "" {
		return a, "the principal has no name"
	}
	for _, r := range who.Roles {
		if _, ok := p.roleOf(r); !ok {
			return a, fmt.Sprintf("version %d of the policy has no role %q, which the credential carries: define the role, or use another credential", p.Version, r)
		}
	}
	return a, ""
}

// Has reports whether a binding gives its role to a principal.
func (b *Binding) Has(who Principal) bool {
	return slices.ContainsFunc(b.Subjects, func(s string) bool { return glob.Match(s, who.Name) })
}

// Somewhere reports whether some rule allows an action to a principal in some place of those that
// the action leaves open: every namespace or region, if the action names none. Then a list may have
// objects that the principal may read. Conditions and rules that deny have no effect on the answer.
func Somewhere(who Principal, a Action, p *Policy) bool {
	a, refused := admit(who, a, p)
	if refused != "" {
		return false
	}
	found := false
	each(who, p, func(s Step, b *Binding) {
		r := s.Rule
		// For a rule that denies, one place of many is enough.
		found = found || r.Effect == Allow && r.names(a) &&
			reaches(Deny, r.Namespaces, a.Namespace) && reaches(Deny, r.Regions, a.Region) &&
			reaches(Deny, b.Namespaces, a.Namespace) && reaches(Deny, b.Regions, a.Region)
	})
	return found
}

// each calls visit for each rule of the principal's roles, with the binding that gave the role. For
// a role that the credential carries, the binding is what narrows these roles.
func each(who Principal, p *Policy, visit func(Step, *Binding)) {
	rules := func(name string, given int, b *Binding) {
		r, ok := p.roleOf(name)
		if !ok {
			return
		}
		for i, rule := range r.Rules {
			visit(Step{Role: name, Number: i + 1, Rule: rule, Given: given}, b)
		}
	}
	carried := &Binding{Namespaces: who.Namespaces, Regions: who.Regions}
	for _, name := range who.Roles {
		rules(name, 0, carried)
	}
	for i := range p.Bindings {
		if b := &p.Bindings[i]; b.Has(who) {
			rules(b.Role, i+1, b)
		}
	}
}

// among reports whether a list of verbs or kinds has a name.
func among(list []string, name string) bool {
	return slices.Contains(list, name) || slices.Contains(list, Any)
}

// names reports whether a rule is about the verb and the kind of an action.
func (r Rule) names(a Action) bool { return among(r.Kinds, a.Kind) && among(r.Verbs, a.Verb) }

// misplaced returns why a rule, narrowed by a binding, does not match an action in normal form,
// whatever its condition says.
func misplaced(r Rule, b *Binding, a Action) string {
	switch {
	case !among(r.Kinds, a.Kind):
		return "another kind"
	case !among(r.Verbs, a.Verb):
		return "another verb"
	case !reaches(r.Effect, r.Namespaces, a.Namespace):
		return "another namespace"
	case !reaches(r.Effect, r.Regions, a.Region):
		return "another region"
	case !reaches(r.Effect, b.Namespaces, a.Namespace):
		return "the role is given for other namespaces"
	case !reaches(r.Effect, b.Regions, a.Region):
		return "the role is given for other regions"
	}
	return ""
}

// misses returns why a rule, narrowed by a binding, does not match an action in normal form.
// depends: the condition reads the job, which the action lacks. A rule that denies matches if its
// condition has no value.
func misses(r Rule, b *Binding, a Action) (why string, depends bool) {
	if why := misplaced(r, b, a); why != "" || r.Condition == "" {
		return why, false
	}
	holds, err := false, errors.New("it is not compiled")
	if r.Holds != nil {
		holds, err = r.Holds(a)
	}
	switch {
	case errors.Is(err, ErrDepends):
		return "the condition depends on the job", true
	case err != nil && r.Effect == Deny, err == nil && holds:
		return "", false
	case err != nil:
		return "the condition fails: " + err.Error(), false
	}
	return "the condition does not hold", false
}

// reaches reports whether patterns match the place of an action: a name, Any for every place,
// or empty for an object outside of places. An action on every place needs a rule that allows
// all places, and one denied place is enough to deny the action.
func reaches(e Effect, patterns []string, place string) bool {
	if len(patterns) == 0 || slices.ContainsFunc(patterns, glob.All) {
		return true
	}
	switch place {
	case "":
		return false
	case Any:
		return e == Deny
	}
	return slices.ContainsFunc(patterns, func(p string) bool { return glob.Match(p, place) })
}

// compare orders rules by role and number, so that the rule which a decision names does not
// depend on the order of bindings.
func compare(a, b Step) int {
	return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Number, b.Number))
}

func before(a, b Step) bool { return compare(a, b) < 0 }
