// Package join decides which new servers and agents get a certificate, and which old ones get
// their next. The package is a core. Nothing uses the package yet: the service Identity of the
// regional servers is to call Decide for a join and Renew for a renewal, and `nusa token` is to
// use Token and Record. A member asks for its next certificate at the time of pki.RenewAt.
//
//   - token.go: Token, the text that a new member shows
//   - record.go: Record, what a server stores of a token, and whether both belong together
//   - decide.go: Policy, and what Decide and Renew read and return
//   - check.go: the checks of a request
package join
