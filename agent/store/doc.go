// Package store is the local store of an agent: its identity, its orders, and the last
// known state of each allocation. After a restart the agent continues from the store, also
// without a server.
//
//	store.go     the bbolt file: identity, format, reading and writing
//	batch.go     changes that are written in one transaction
//	writer.go    the one writer of a running agent; retries while the disk is full
//	timeline.go  times that are compared, independent of the host's wall clock
//	reserve.go   disk space that the store holds in advance
package store
