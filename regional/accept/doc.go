// Package accept decides what a region tells the global tier about its slots: a
// pure function from the committed view and the scheduler's plan.
//
// A slot is accepted once it is in the log. Instances that fit nowhere are given back
// by a command of the log, so that the region places none of them after it has given
// them back. Stopped, revoked and done follow from the state. Every answer is repeated
// until the order that the region holds has changed accordingly.
//
//   - accept.go: which instances are given back, and the answers about slots
//   - bound.go: whether the region's lease binds all that may run for a slot
//   - hold.go: the answers about slots that another region owns now
//   - disconnected.go: instances that may still run on a lost node and are not given
//     back
package accept
