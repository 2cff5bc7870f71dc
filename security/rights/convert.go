package rights

import (
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// policyOf returns the roles and bindings of a message.
func policyOf(msg *nusav1.AuthSet) *authz.Policy {
	p := &authz.Policy{Version: uint64(msg.GetVersion())}
	for _, r := range msg.GetRoles() {
		role := authz.Role{Name: r.GetName()}
		for _, rule := range r.GetRules() {
			effect := authz.Deny
			if rule.GetAllow() {
				effect = authz.Allow
			}
			role.Rules = append(role.Rules, authz.Rule{
				Effect: effect, Verbs: rule.GetVerbs(), Kinds: rule.GetKinds(), Namespaces: rule.GetNamespaces(), Regions: rule.GetRegions(),
			})
		}
		p.Roles = append(p.Roles, role)
	}
	for _, b := range msg.GetBindings() {
		p.Bindings = append(p.Bindings, authz.Binding{
			Role: b.GetRole(), Subjects: b.GetSubjects(), Namespaces: b.GetNamespaces(), Regions: b.GetRegions(),
		})
	}
	return p
}

func roleMessage(r authz.Role, builtIn bool) *nusav1.AuthRole {
	out := &nusav1.AuthRole{Name: r.Name, BuiltIn: builtIn}
	for _, rule := range r.Rules {
		out.Rules = append(out.Rules, &nusav1.AuthRule{
			Allow: rule.Effect == authz.Allow, Verbs: rule.Verbs, Kinds: rule.Kinds, Namespaces: rule.Namespaces, Regions: rule.Regions,
		})
	}
	return out
}

// Roles returns the built-in roles and then the stored ones.
func (s *Set) Roles() []*nusav1.AuthRole {
	var out []*nusav1.AuthRole
	for _, r := range authz.BuiltinRoles() {
		out = append(out, roleMessage(r, true))
	}
	return append(out, s.msg.GetRoles()...)
}

// Bindings returns the stored bindings.
func (s *Set) Bindings() []*nusav1.AuthBinding { return s.msg.GetBindings() }

// Tokens returns the tokens without the hashes of their secrets.
func (s *Set) Tokens() []*nusav1.AccessToken {
	var out []*nusav1.AccessToken
	for _, t := range s.msg.GetTokens() {
		out = append(out, shown(t))
	}
	return out
}

// StepMessage returns a step of an explanation, with the name of the binding that gave the role.
func (s *Set) StepMessage(step authz.Step) *nusav1.AccessStep {
	out := &nusav1.AccessStep{Role: step.Role, Number: int32(step.Number), Rule: step.Rule.String(), Misses: step.Misses}
	if step.Given > 0 {
		out.Binding = s.msg.GetBindings()[step.Given-1].GetName()
	}
	return out
}
