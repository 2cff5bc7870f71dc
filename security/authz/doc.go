// Package authz decides whether a principal may do something to an object. The package is a
// core. No server uses the package yet: the gate of the gRPC servers (security/gate) is to ask
// Decide before each call, and `nusa auth can-i` and `nusa auth explain` are to show Explain.
// Until then security/gate alone decides, by the kind of the caller.
//
//   - kinds.go: the kinds of objects, and the verbs of each
//   - policy.go: Principal, Rule, Role and Policy, and what a policy may contain
//   - builtin.go: the roles that each policy has
//   - decide.go: Decide and Explain
package authz
