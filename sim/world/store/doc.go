// Package store models the store of the global tier in virtual time, as global/store describes it.
//
//   - etcd.go: keys, transactions, the election, and copies that an operator restores
//   - client.go: one global server's connection
package store
