// Package plant names bugs that a build with the tag `planted` can switch on. A test of
// sim/world shows that the simulation finds each bug. Without the tag, Is is false at
// compile time, so that no code of a bug is in the binary.
//
//   - plant.go: the names
//   - off.go, on.go: Is and Set in builds without and with the tag
package plant
