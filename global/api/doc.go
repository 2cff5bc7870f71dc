// Package api serves the public gRPC services of the active global server, and
// the services that every global server has. Calls about nodes and allocations
// go to the regions through the tunnels of their sessions.
//
//	api.go          Services: registration; System and Federation
//	term.go         Term: what the services need of one leadership term; statuses of errors
//	reach.go        tunnels to regions; one call to many regions
//	jobs.go         Jobs: Get, Stop, Watch; Overrides
//	joblist.go      Jobs.List over the federation's and the regions' jobs
//	submit.go       Jobs: Submit, SubmitMany
//	explain.go      Jobs: Plan, Explain
//	allocations.go  Allocations
//	nodes.go        Nodes, Pools
//	namespaces.go   Namespaces: what the jobs of a namespace may ask for
//	regions.go      Regions
//	moves.go        Regions: Drain, Failback
//	lose.go         Regions: Lose
//	tokens.go       Tokens
//	members.go      Members
//	keys.go         Keys
//	topology.go     Topology
//	origins.go      Origins
//	auth.go         Auth: roles, bindings, tokens
//	login.go        Auth: providers and logins
//	events.go       Events
//	audit.go        Audit: Checkpoint; entries for calls that the regions serve
//	auditlist.go    Audit: List over the own trail and those of the regions
//	auditexport.go  Audit: Export
package api
