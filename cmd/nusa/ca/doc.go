// Package ca has the command nusa ca: a certificate authority in a folder, which issues the
// identities of a federation.
//
//   - command.go: nusa ca init and nusa ca issue
//   - folder.go: the folder with the keys of the authority
//   - authorities.go: the authorities of a folder, for a federation that runs on one machine
//   - member.go: the folder of a member
package ca
