// Package counts does the arithmetic of instance counts, in the same way at every
// tier.
//
//   - counts.go: sums, and the move of surplus instances to "stopping"
package counts
