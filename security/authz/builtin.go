package authz

import (
	"slices"
	"strings"
)

// builtin are the roles of every policy. A policy cannot change these roles. Only admin
// changes roles, tokens and keys, and only admin reads the values of secrets.
var builtin = []Role{
	role("admin", "allow * *"),
	role("operator",
		"allow * job,allocation,reservation,spare,provisioner,namespace,node,pool,region,topology,origin,event,webhook,bus,intake",
		"allow read,set,remove secret",
		"allow read,monitor,reconcile,recover system",
		"allow read token,role,key"),
	role("submitter",
		"allow read,plan,submit,dispatch,stop job",
		"allow read,stop,logs,exec allocation",
		"allow * reservation",
		"allow read,set,remove secret",
		"allow read spare,namespace,event,node,pool,region,topology,origin,system"),
	role("viewer",
		"allow read job,allocation,reservation,spare,namespace,event,node,pool,region,topology,origin,system"),
	role("auditor",
		"allow read *",
		"allow export,verify audit"),
}

// role returns a role of rules like "allow VERB,VERB KIND,KIND".
func role(name string, rules ...string) Role {
	out := Role{Name: name}
	for _, text := range rules {
		f := strings.Fields(text)
		r := Rule{Effect: Deny, Verbs: strings.Split(f[1], ","), Kinds: strings.Split(f[2], ",")}
		if f[0] == "allow" {
			r.Effect = Allow
		}
		out.Rules = append(out.Rules, r)
	}
	return out
}

// Builtin returns the names of the roles of every policy.
func Builtin() []string {
	var out []string
	for _, r := range builtin {
		out = append(out, r.Name)
	}
	return out
}

// Has reports whether a role exists, stored or built in.
func (p *Policy) Has(role string) bool {
	_, ok := p.roleOf(role)
	return ok
}

// roleOf returns a role of the policy, or a role that every policy has.
func (p *Policy) roleOf(name string) (*Role, bool) {
	for _, roles := range [][]Role{builtin, p.Roles} {
		if i := slices.IndexFunc(roles, func(r Role) bool { return r.Name == name }); i >= 0 {
			return &roles[i], true
		}
	}
	return nil, false
}

// BuiltinRoles returns the roles of every policy. Nobody may change their rules.
func BuiltinRoles() []Role { return slices.Clone(builtin) }
