// Package global is the federation's tier: it stores jobs, slots and regions in
// etcd, decides which regions run a job, and serves the streams of the regions'
// masters. One server is active; the others forward calls to it.
//
//	config.go      Config and its defaults
//	run.go         Run: listeners, store, and everything that runs
//	leadership.go  the election, whose key guards every write (state/committer.go)
//	tracker.go     which server is active, and the connection to it
//	reach.go       whether the store answers, and what is said while it does not
//	known.go       the greatest revision of the store that this server has seen
//	term.go        leadershipTerm: the active server for one leadership term
//	trail.go       bounds of the audit and of the idempotency records
//	upkeep.go      how full the store is, and the room that is made in it
//	failover.go    the loop that declares regions lost and says what may move
//	metrics.go     metrics
//
// Rooms, from the leaves upward: store and the pure cores place, region, failover and room;
// latency (round trips), state (everything known, and its writer); placer and
// uplink (regions' streams); api (gRPC services).
package global
