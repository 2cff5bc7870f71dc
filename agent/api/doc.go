// Package api serves the gRPC service Allocations of one node. The region calls it
// through a tunnel that the agent opened.
//
//	allocations.go  list, get and logs
//	repairs.go      which orders the agent has, for comparisons
//	exec.go         commands in running tasks, and the resources that tasks use
//	operate.go      restarts and signals
//	files.go        the files of an allocation
//	errors.go       errors of the engine and of drivers as gRPC statuses
package api
