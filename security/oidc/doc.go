// Package oidc lets people log in with an OpenID Connect provider of their organisation. The provider
// signs an ID token, and the rules of the stored provider say which roles its claims give.
//
//   - provider.go: what a stored provider must be
//   - http.go: connections to a provider, and its endpoints
//   - verify.go: Verifier, which verifies ID tokens
//   - claims.go: who an ID token names, and which roles
//   - condition.go: the conditions of rules, in CEL
//   - oidctest: a real provider for tests
package oidc
