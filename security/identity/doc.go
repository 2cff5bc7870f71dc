// Package identity names the servers, agents and people of a federation. A name is a SPIFFE
// ID, and a certificate carries one. The package is a core: it reads no file and no clock.
//
//   - identity.go: ID and its text
//   - rule.go: Rules, which say who may be the other end of a connection
package identity
