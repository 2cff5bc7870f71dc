// Package region measures how fast a region places and acknowledges allocations,
// from the outside: `nusa bench region`.
//
//	region.go           the measurement, step by step
//	region_options.go   options and their bounds
//	region_result.go    the result and its table
//	region_figures.go   CPU, memory, idle time and restart of the servers
//	servers.go          the measured servers, as processes
//	members.go          identities of servers, agents and callers, with --tls
//	empty.go            empty calls, for comparison
//	jobtable.go         what a client sees of its jobs
//	fleet.go            the simulated agents of a region
//	simulated.go        one simulated agent
//	samples.go          inventories and job groups of the simulation
//	clean.go            removal of jobs and simulated nodes
//	stuck.go            the reason why instances are not placed
package region
