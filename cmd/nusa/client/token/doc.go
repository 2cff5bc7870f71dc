// Package token has the commands of `nusa token`: make, list and revoke join tokens.
//
//   - command.go: the noun, and token create
//   - list.go: token list and revoke
package token
