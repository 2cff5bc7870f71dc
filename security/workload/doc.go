// Package workload gets the identity of this process from a SPIFFE Workload API, for example that
// of a SPIRE agent, and writes each new one into a folder that security/trust reads.
//
//   - follow.go: the first identity, and those that replace it
//   - choose.go: which identity of an answer is that of this process
package workload
