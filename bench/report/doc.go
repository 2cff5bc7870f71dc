// Package report holds the code that all benchmarks share: figures, their output, and the
// measurement of processes.
//
//	quantiles.go   quantiles of durations, rounding
//	output.go      a result as table, JSON or YAML
//	proc.go        CPU time, memory and children of a process; the disk's fsync
//	process.go     measured servers: those that a measurement starts, those that run already
//	profile.go     CPU and heap profiles of this process
//	ports.go       free ports of loopback
//	wait.go        bounds of waiting
//	wire.go        what simulated peers say on the wire
package report
