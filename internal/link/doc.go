// Package link keeps a receiver's set of keyed items equal to a sender's set over a
// connection that breaks: the full set first, then only the latest value of each
// changed key. The receiver acknowledges positions, and after a break the sender
// resumes from the acknowledged one. Both hops (region ↔ global tier, agent ↔
// master) use it in both directions. It is pure: sending, waiting and locking are
// the caller's, and nothing here is safe for concurrent use.
//
//   - outbox.go: the sender's set with its history of changes
//   - cursor.go: one receiver's place in an outbox, and the next batch for it
//   - inbox.go: the receiver's side of one connection
package link
