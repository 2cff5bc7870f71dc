// Package bench implements `nusa bench`. It has the flags of the benchmarks, and the
// packages below bench/ measure.
//
//	bench.go              the command and what its subcommands share
//	region_command.go     nusa bench region
//	agent_command.go      nusa bench agent
//	topology_command.go   nusa bench topology
//	reservations_command.go nusa bench reservations
//	federation_command.go nusa bench federation, and its hidden commands: etcd alone, the bare parts
//	replay_command.go     nusa bench federation --trace
//	workflows_command.go  nusa bench workflows
//	failover_command.go   nusa bench failover, and the task of the measured job
//	failover_scale_command.go nusa bench failover-moves and failover-cost
//	profiled.go           the hidden command that runs another command and writes profiles of it
package bench
