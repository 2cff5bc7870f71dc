// Package pool has the commands `nusa pool`: the scoring policies of node pools.
package pool
