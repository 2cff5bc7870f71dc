// Package bench implements `nusa bench`: the flags of the benchmarks.
//
//	bench.go              the command and what its subcommands share
//	region_command.go     nusa bench region
//	agent_command.go      nusa bench agent
//	topology_command.go   nusa bench topology
//	federation_command.go nusa bench federation, and etcd alone
//	replay_command.go     nusa bench federation --trace
//	failover_command.go   nusa bench failover, and the task that it measures
//	profiled.go           runs another command and writes profiles of it
package bench
