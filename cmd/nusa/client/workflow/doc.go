// Package workflow has the commands `nusa workflow`: runs of workflows.
//
//	command.go  run, list, retry, approve, cancel, logs
//	status.go   status
//	graph.go    graph
package workflow
