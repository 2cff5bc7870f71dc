// Package rotation decides how a federation changes to another root, and to other keys of gossip
// and probes, while all members stay connected. Each change has steps. A step is refused while a
// member lacks what the earlier step gave it, because the step would separate that member from the
// others.
//
//   - authority.go: the steps to another root
//   - ring.go: the steps to another key of a ring
//   - state.go: what a member has, what it should have, and what it lacks
package rotation
