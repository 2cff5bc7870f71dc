// Package repair compares the store with the memory of the active server and with the logs of the
// regions, and repairs what differs. In a healthy federation it finds nothing.
//
//   - repair.go: Repairer: when it compares, and what it found
//   - memory.go: the memory of the active server
//   - regions.go: the slots of regions
package repair
