// Package supervise contains the small process beside each task, and the driver's calls to
// it. The supervisor starts the command, keeps its output and its exit code, enforces its
// lease, kills all its processes at the end, and outlives the agent. Linux only.
//
//	supervise.go  the supervisor's main function, and the lock of a run
//	child.go      the command: start, end, kill, reaping
//	lease.go      the deadline of the command: fork, renewals, end
//	server.go     requests to the supervisor
//	client.go     the driver's requests, and the end of a run without a supervisor
//	spawn.go      starting supervisors, with a spare one
//	spec.go       the files of a run: specification and records
//	exec.go       further commands in a run
//	streams.go    the streams of a further command at the driver
//	logs.go       reading the output
//	rotate.go     writing the output into rotated files
//	cgroup.go     limits by cgroups
//	usage.go      the resources that a run uses
//	proc.go       processes by /proc
//	user.go       users, groups and ulimits
//	view.go       the mount namespace of a command
//	pace.go       pauses of a polling loop
package supervise
