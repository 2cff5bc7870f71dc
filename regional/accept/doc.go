// Package accept decides which answers a region gives the global tier about its slots. Each
// decision is a pure function of the committed view and the scheduler's plan.
//
// A slot is accepted once it is in the log. Instances that fit nowhere are given back by a
// command in the log, so that the region cannot place them afterwards. The answers stopped,
// revoked and done follow from the state. The region repeats every answer until the slot's
// order changes.
//
//   - accept.go: which instances are given back, and the answers about slots
//   - bound.go: whether the region's lease binds everything that may run for a slot
//   - hold.go: the answers about slots that now belong to another region
//   - unordered.go: counts attempts that may run although the region has no order for them
//   - disconnected.go: instances that may still run on a lost node and are not given
//     back
package accept
