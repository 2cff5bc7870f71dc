// Package federation measures how fast the global tier decides in which regions jobs run:
// `nusa bench federation`. The regions are emulated (package emulate).
//
//	federation.go   the measurement, step by step
//	options.go      options and their bounds
//	result.go       the result and its table
//	server.go       the measured server, as a process
//	jobs.go         the jobs: what they ask for
//	table.go        when each job was sent, offered and accepted
//	watch.go        watches of a sample of the jobs
//	figures.go      connect, idle time, CPU, memory and restart
//	stored.go       the same load again, once many jobs are stored
//	history.go      jobs that have ended, for the restarted server
//	etcd.go         etcd alone, as a process: its rate, and how long it takes to open and read the data
//	ratios.go       the bare parts (package parts), and the figures divided by theirs
//	rounds.go       several rounds, and the medians of their figures
//	clean.go        removal of jobs and regions from a running federation
package federation
