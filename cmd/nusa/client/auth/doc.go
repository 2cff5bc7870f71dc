// Package auth has the commands `nusa auth`: who the caller is, who may do what, and roles,
// bindings and access tokens.
//
//   - command.go: whoami, can-i and explain
//   - role.go: roles and the text of rules
//   - binding.go: bindings
//   - token.go: access tokens
package auth
