package rights

import (
	"slices"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// policyOf returns the roles and bindings of a message.
func policyOf(msg *nusav1.AuthSet) *authz.Policy {
	p := &authz.Policy{Version: uint64(msg.GetVersion())}
	for _, r := range storedRoles(msg) {
		role := authz.Role{Name: r.GetName()}
		for _, rule := range r.GetRules() {
			effect := authz.Deny
			if rule.GetAllow() {
				effect = authz.Allow
			}
			role.Rules = append(role.Rules, authz.Rule{
				Effect: effect, Verbs: rule.GetVerbs(), Kinds: rule.GetKinds(), Namespaces: rule.GetNamespaces(), Regions: rule.GetRegions(),
				Condition: rule.GetCondition(), Holds: holds(rule.GetCondition()),
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

// storedRoles returns the roles of a message, sorted by name.
func storedRoles(msg *nusav1.AuthSet) []*nusav1.AuthRole {
	if len(msg.GetConditionalRoles()) == 0 {
		return msg.GetRoles()
	}
	out := slices.Concat(msg.GetRoles(), msg.GetConditionalRoles())
	slices.SortFunc(out, func(a, b *nusav1.AuthRole) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
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
