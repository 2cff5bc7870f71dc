// Package register derives from the committed state which instances of services are healthy. The
// package is pure: the region's servers derive the same instances from the same state.
//
//   - register.go: Instances of one group
package register
