// Package reserve is a driver whose tasks run nothing. A task takes its resources on the node, so that
// something else can use them, for example a virtual machine that another system creates. A node may
// have thousands of such tasks: they have no process, and the driver has no goroutine.
//
// A run is up as soon as it is recorded. It ends when it is stopped, or after its `ttl`. The driver has
// the capability self_fencing, because the state of a run follows from its record and the clock: after
// the lease deadline the run has ended even if no agent is alive to notice. The reservation itself is
// only an entry in the books. What was created on the strength of it must check the reservation itself.
//
//	reserve.go  the driver
//	record.go   the record of a run, and the run's state at a given time
//	disk.go     the file with all records
package reserve
