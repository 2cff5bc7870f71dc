// Package plant names bugs that a build with the tag `planted` can switch on. Package
// sim/world shows that the simulation finds each of them. Without the tag every question
// is false at compile time, and nothing of a bug is in the binary.
//
//   - plant.go: the names
//   - off.go, on.go: without and with the tag
package plant
