// Package join decides which new servers and agents get a certificate, and which old ones get
// their next. The package is a core. Package enroll calls it, and package member asks.
//
//   - token.go: Token, the text that a new member shows
//   - root.go: Root, by which a member without a token knows its federation
//   - record.go: Record, what a server stores of a token, and whether both belong together
//   - decide.go: Policy, and what Decide and Renew read and return
//   - check.go: the checks of a request
package join
