// Package gather stores the audit trails of the regions at the global tier, so that they outlive the
// regions.
//
//   - take.go: Take: checks what a region forwarded, and says what is stored (pure)
//   - gather.go: Gather: asks the regions and stores their entries
//   - bounds.go: removes the oldest entries
package gather
