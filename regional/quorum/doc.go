// Package quorum forms and maintains the Raft group of a region: it bootstraps a
// new group once enough servers have found one another by gossip, lets the
// leader add new servers and remove dead ones, and says who leads. What the log
// means is decided by the FSM.
//
//   - quorum.go: Group: opens Raft, forms the group, reports leader changes
//   - restore.go: a new group that begins with the state of a former one
//   - members.go: the leader's loop that applies the membership plan
//   - plan.go: the membership plan and the formation of a new group, both pure
//   - waiting.go: warnings of a server that waits for others
//   - snapshot.go: when a snapshot is taken (its content: regional/raftlog/codec.go),
//     and how much log stays behind it
//   - stream.go: Raft's connections, which name the server they are meant for
//   - store.go: opens the stores of a Raft directory
//   - layout.go: files of a Raft directory; takes over directories of earlier
//     versions and converts between the two kinds of log
//   - wal.go: the log in etcd's write-ahead log, and the frame of a record
//   - waltail.go: finds the end of that log after a power cut
//   - bolt.go: the log, and the term and vote, in raft-boltdb
//   - logstore.go: what both logs share: order of entries, refusal after a
//     failed write
//   - logger.go: Raft's logger on slog
package quorum
