// Package repair compares the log of a region with what its master and its agents have, and repairs
// what differs. In a healthy region it finds nothing.
//
//   - repair.go: Repairer: when it compares, and what it found
//   - agents.go: the orders of agents
package repair
