// Package api serves a region's public API, and what its servers ask one
// another. Reads come from the committed state and from what the master
// measured; changes are committed through the log. So a region without the global
// tier, an island, is served here, too. A server that is not the
// master forwards calls before they arrive here.
//
//	server.go       registers the services; what they need of server and leadership
//	jobs.go         Jobs: get, list, stop, watch
//	jobstatus.go    the status of a job and of its groups
//	submit.go       Jobs: submit
//	spec.go         which specs a region takes for its own jobs
//	explain.go      Jobs: why instances run where they do
//	plan.go         Jobs: the dry run of a submit
//	groups.go       Jobs: the watch of group counts
//	allocations.go  Allocations: list, get, stop, and calls passed on to agents
//	nodes.go        Nodes
//	regions.go      Regions, and the comparison of the servers' states
//	federation.go   Regions: another federation; what an operator has to know
//	topology.go     Topology: matrix, paths, distances
//	history.go      Topology: what was measured over time
//	origins.go      Origins
//	events.go       Events
//	siblings.go     Siblings: what the servers of the region ask one another
//	system.go       System
//	errors.go       statuses that several services return
package api
