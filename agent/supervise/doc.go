// Package supervise contains the supervisor, a small process beside each task, and the
// driver's calls to it. The supervisor starts the task's command, retains the output and
// the exit code, enforces the lease, kills all processes of the command at the end, and
// outlives the agent. The package works only on Linux.
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
//	cgroup.go     limits of memory and CPU by cgroups
//	usage.go      the resources that a run uses
//	proc.go       finding and killing processes through /proc, and clocks
//	user.go       users, groups and ulimits
//	view.go       the mount namespace of a command
//	pace.go       pauses of a polling loop
//
// The folder slim embeds the small executable of the supervisor.
package supervise
