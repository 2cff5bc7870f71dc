// Package presence decides which nodes of a region are lost or ready, and for how long a
// node has been without a lease. The package is pure: each event is a call that changes a
// value, and each question is a call with the present time.
//
// Times are readings of one clock that keeps running while the host is suspended. A new
// master counts every absence from its own election. Until that moment its predecessor may
// have received messages of the node and may have granted it a lease.
//
//   - presence.go: a node's contact with its master, event by event
//   - absence.go: how long a lost node has been absent, and until when its lease may last
//   - claim.go: whether an agent may have a node name that another node holds
//   - informed.go: whether the supervisors of a node know which leases bind their tasks
//   - suspect.go: whether the log may be an old copy after the servers were started
package presence
