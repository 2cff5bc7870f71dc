// Package store is the small key-value interface that the global tier needs of
// etcd: revisions, transactions that compare them, pages, watches, keys that
// expire, and an election. One contract test runs over both implementations.
//
//	store.go            the interface, its values, errors and limits
//	etcd.go             the implementation on etcd
//	direct.go           its transactions at the embedded member
//	list.go             its lists
//	usage.go            how full etcd is, and how room is made in it
//	upkeep.go           when room is made
//	surplus.go          the sign of a restored snapshot
//	revisions.go        revisions that only grow, over a restore from an old copy
//	etcd_election.go    its election
//	member.go           the embedded etcd member, and etcd's log
//	socket.go           the socket where it serves clients of its own user
//	memory.go           the implementation in memory, for tests and simulations
//	memory_election.go  its election
package store
