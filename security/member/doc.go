// Package member is the part of a program that gets the program's own certificate: it joins a
// federation with a token, and renews the certificate in time.
//
//   - join.go: the first certificate, and the renewal of one that has expired
//   - former.go: the join of a member that was off while the root was changed
//   - contact.go: calls of service Identity at the first server that answers
//   - keep.go: renewals while the program runs
//   - orders.go: the roots and keys that the member should have, and those that it has
package member
