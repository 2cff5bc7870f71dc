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
// placer, workflows runs chains of steps, reservations calls the HTTP API of a running federation, and report has what all benchmarks share.
//
// A goal is compared with a ceiling that is measured in the same run. The ceiling of a region
// is in ceiling.go. The ceiling of the global tier is package federation/parts: a process
// with the parts of a global server and without its decisions, under the same load and with
// the same emulated regions. RESULTS.md has each figure beside that of the parts.
package main
