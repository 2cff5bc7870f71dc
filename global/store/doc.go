// Package store is the small key-value interface that the global tier needs of
// etcd: revisions, transactions that compare them, pages, watches, keys that
// expire, and an election. One contract test runs over both implementations.
//
//	store.go            the interface, its values, errors and limits
//	etcd.go             the implementation on etcd
//	direct.go           transactions at the embedded member
//	list.go             lists of etcd's keys
//	usage.go            how full etcd is, and how space is made in it
//	upkeep.go           when space is made
//	pages_linux.go      the pages of the embedded database leave the process
//	pages_other.go      nothing, on other systems
//	surplus.go          how a restored snapshot is noticed
//	revisions.go        revisions that keep growing after a restore from an old copy
//	etcd_election.go    the election on etcd
//	member.go           the embedded etcd member, and etcd's log
//	front.go            the ports of the member, and the identities that they accept
//	socket.go           the socket where it serves clients of its own user
//	outside.go          the credentials for an external etcd
//	memory.go           the implementation in memory, for tests and simulations
//	memory_election.go  the election in memory
package store
