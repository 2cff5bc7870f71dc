// Package confine checks what a job asks for against the limits of its namespace. A server refuses
// what a limit forbids when the job is submitted, before a node can refuse it.
//
//   - confine.go: the limits, and what a job asks for beyond them
//   - privilege.go: the settings of Incus that may give access to the host
package confine
