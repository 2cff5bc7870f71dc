// Package ca has the command nusa ca: a certificate authority in a folder, which issues the
// identities of a federation.
//
//   - command.go: nusa ca init and nusa ca issue
//   - folder.go: the folder with the keys of the authority
//   - member.go: the folder of a member
package ca
