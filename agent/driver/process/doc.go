// Package process is the driver that runs commands on the host. Each run has its own
// supervisor (package supervise), so that it outlives the agent.
//
//	process.go  the driver
//	config.go   the task's config
//	users.go    users that tasks may run as
//	volumes.go  volumes, and the part of the host's files that a task sees
package process
