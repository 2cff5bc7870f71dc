// Package parts is the ceiling of the global tier: the bare parts of a global server, with
// no decisions. A global tier of these parts cannot be faster on the same machine. `nusa
// bench federation --parts` measures the parts and a global server with the same load
// generator and the same emulated regions.
//
// The parts are the gRPC server and the embedded etcd of a global server, with the same
// settings and with fsync. They do what each global tier must do for a job:
//
//   - They receive the submit, store the job with its slots, and then answer.
//   - They store who submitted it in the audit log, and what has changed in the log of events,
//     in the transaction of the change. Nobody may learn of a change that these logs lack.
//   - They send each slot to a region, over the stream that the region has opened.
//   - They receive the region's answer, store the accepted slot, and send it back.
//   - They receive that the instances run, and send it to the watches of the job.
//
// The keys and values in etcd have the sizes of those of a global server. Requests that
// wait at the same time share a transaction, and the orders of a transaction for the same
// region share a message. A region's hello gets a welcome once the region's record is
// stored, and each request for a lease is granted. A restarted process reads all records
// before it serves.
//
// The parts leave out everything else. Regions take turns: no spec is checked, and nothing
// is placed. The parts hash and compress no entry of their logs, elect no server and compare
// only one key in a transaction. They keep no reports and no round trips, explain nothing, tell the regions
// nothing about each other, and move nothing from a lost region. A slot is never stopped.
//
//	parts.go    Run: the store, the services, and what the process keeps
//	write.go    transactions
//	session.go  the stream of a region
//	jobs.go     submits and watches
//	records.go  keys and values of the store
package parts
