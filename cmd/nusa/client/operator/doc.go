// Package operator has the commands of `nusa operator`, for those who run a federation.
//
//   - command.go: the noun
//   - authority.go: change to another root
//   - reconcile.go: compare the tiers
//   - rings.go: change to other keys of gossip and of probes
package operator
