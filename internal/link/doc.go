// Package link keeps a receiver's set of keyed items equal to a sender's set, over a
// connection that may break. The sender first sends the full set, and then only the latest
// value of each changed key. The receiver acknowledges positions. After a break the sender
// resumes from the acknowledged position. Both connections (region ↔ global tier, agent ↔
// master) use the package in both directions. The package is pure: the caller sends, waits
// and locks. Nothing in it is safe for concurrent use.
//
//   - outbox.go: the sender's set, and the order of its changes
//   - cursor.go: one receiver's position in an outbox, and its next batch
//   - inbox.go: the receiver: batches become changes
package link
