// Package presence decides which nodes of a region are lost or ready, and for how long a
// node has been without a lease. It is pure: a step for each event, and answers at a time.
//
// Times are readings of one clock that keeps running while the host is suspended. They
// count within the term of one master: a new master counts from its election, because
// its predecessor may have received messages of a node, and granted it a lease, until then.
//
//   - presence.go: a node's contact with its master, event by event
//   - absence.go: how long a lost node has been absent, and what that allows
//   - suspect.go: whether the log may be an old copy, after a start of the servers
package presence
