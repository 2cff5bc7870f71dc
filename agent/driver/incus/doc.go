// Package incus is the driver that runs a task as an Incus container or virtual machine.
// In a container with a command the first process is a supervisor (package supervise),
// bind-mounted with the folder of the run. It keeps the exit code, the output and the
// lease there, with or without a running agent or daemon. Without a command, and in a
// virtual machine, the image's own init runs and the daemon reports the state.
//
//	incus.go    the driver: fingerprint, status, wait, stop, renew, logs, remove
//	start.go    making and starting an instance, also after an interrupted start
//	delete.go   deleting instances
//	use.go      statistics, changed limits and commands of a running instance
//	request.go  the request that makes an instance
//	config.go   the task's config
//	allow.go    keys and devices that need the operator's permission
//	record.go   the record of a run, and the lock of a run
//	engine.go   calls of the daemon
//	events.go   events of the daemon that wake waiters
package incus
