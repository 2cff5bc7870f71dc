// Command bench runs the benchmarks one by one and writes their figures, with the
// machine and the commit, as a page: `make bench`.
//
//	main.go       flags, and the run
//	cases.go      the scenarios of a region, their goals, Nomad's figures
//	agent.go      the section about one agent
//	federation.go the section about a federation, and plans of the pure placer
//	topology.go   the tables of predicted round trips, queries of a matrix
//	ceiling.go    what the bare parts reach in the same run
//	page.go       the written page
//
// Each of the folders region, agent, federation, failover and prediction is a benchmark. The
// folder emulate has emulated regions, load submits jobs, replay gives a recorded load to the
// placer, and report has what all benchmarks share.
package main
