// Package api serves a region's public API, and the calls that its servers make to one
// another. Reads come from the committed state and from measurements of the master. Changes
// are committed through the log. So the package also serves an island: a region without the
// global tier. A server that is not the master forwards calls before they reach this
// package.
//
//	server.go       registers the services; what they need from the server and the term
//	jobs.go         Jobs: get, list, stop, watch
//	jobstatus.go    the status of a job and of its groups
//	submit.go       Jobs: submit
//	spec.go         which specs a region accepts for its own jobs
//	explain.go      Jobs: why each node runs instances of a job or cannot
//	plan.go         Jobs: the dry run of a submit
//	groups.go       Jobs: the watch of group counts
//	allocations.go  Allocations: list, get, stop, and calls passed on to agents
//	nodes.go        Nodes
//	pools.go        Pools
//	regions.go      Regions, and the comparison of the servers' states
//	federation.go   Regions: the move to another federation; Overrides; alarms for an operator
//	topology.go     Topology: matrix, paths, distances
//	history.go      Topology: the metrics history
//	origins.go      Origins
//	auth.go         Auth
//	events.go       Events
//	audit.go        Audit; entries of the audit trail for commands
//	tokens.go       Tokens, and the documents of the log in which package enroll keeps its records
//	members.go      Members
//	keys.go         Keys: the agents that do not have the roots that they should
//	siblings.go     Siblings: calls between the servers of the region
//	system.go       System and Repairs
package api
