// Package quorum forms and maintains the Raft group of a region. It bootstraps a new group
// once enough servers have found one another by gossip. On the leader it adds new servers
// and removes dead ones. It reports changes of the leader. The FSM decides what the
// entries of the log mean.
//
//   - quorum.go: Group: opens Raft, forms the group, reports changes of the leader
//   - restore.go: a new group that begins with the state of a former group
//   - members.go: the leader's loop that applies the membership plan (regional/voters)
//   - waiting.go: warnings of a server that waits for other servers
//   - snapshot.go: when a snapshot is taken (its content: regional/raftlog/codec.go), and how
//     many entries stay in the log after it
//   - stream.go: Raft's connections; each begins with the id of the server it is meant for
//   - store.go: opens the stores of a Raft directory
//   - layout.go: the files of a Raft directory; migrates directories of earlier versions and
//     converts between the two kinds of log
//   - wal.go: the log in etcd's write-ahead log, and the format of a record
//   - waltail.go: finds the end of that log after a power cut
//   - bolt.go: the log, and the term and vote, in raft-boltdb
//   - logstore.go: checks that both kinds of log share: the order of entries, and no writes
//     after a failed write
//   - logger.go: passes Raft's log records to slog
package quorum
