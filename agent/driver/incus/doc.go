// Package incus is the driver that runs a task as an Incus container or virtual machine. In
// a container with a command the first process is a supervisor (package supervise). The
// supervisor and the folder of the run are bind-mounted into the container. The supervisor
// retains the exit code and the output in that folder and enforces the lease, even if no
// agent and no daemon is running. Without a command, and in a virtual machine, the image's
// own init runs, and the daemon reports the state.
//
//	incus.go    the driver: fingerprint, status, wait, stop, renew, logs, remove
//	start.go    making and starting an instance, also after an interrupted start
//	delete.go   deleting instances
//	use.go      statistics, changed limits and commands in a running instance
//	request.go  the request that makes an instance
//	config.go   the task's config
//	allow.go    keys and devices that need the operator's permission
//	record.go   the record of a run, and the lock of a run
//	engine.go   requests to the daemon
//	events.go   events of the daemon that wake waiting callers
package incus
