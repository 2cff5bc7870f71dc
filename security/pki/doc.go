// Package pki issues and verifies the certificates of a federation. The root certificate
// issues the certificates of global servers, operators and regions. A region's certificate
// issues the certificates of the region's servers and agents, so a region works without
// the global tier. The package is a core: callers pass the time and the source of
// randomness.
//
//   - authority.go: certificate authorities, and the certificates that they issue
//   - request.go: certificate requests, for members that create their own key
//   - verify.go: from the certificates of a peer to its identity
//   - encode.go: PEM texts of certificates and keys
//   - life.go: when a certificate is renewed
//   - next.go: the root that replaces another one
package pki
