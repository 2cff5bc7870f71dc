// Package authz decides whether a principal may do something to an object. The package is a
// core. The gate of the gRPC servers (security/gate) asks Decide before each call of an operator,
// through package security/rights, and `nusa auth can-i` and `nusa auth explain` show Explain.
//
//   - kinds.go: the kinds of objects, and the verbs of each
//   - policy.go: Principal, Rule, Role and Policy, and what a policy may contain
//   - builtin.go: the roles that each policy has
//   - decide.go: Decide, Explain and Somewhere
//   - token.go: the text of an access token
package authz
