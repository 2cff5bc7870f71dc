// Package auth has the commands `nusa auth`: who the caller is, who may do what, and roles,
// bindings, access tokens and providers.
//
//   - command.go: whoami, can-i and explain
//   - role.go: roles and the text of rules
//   - binding.go: bindings
//   - token.go: access tokens
//   - provider.go: OpenID Connect providers
//   - list.go: what the commands for lists and for removal share
package auth
