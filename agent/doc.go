// Package agent is the role of a node. It runs what the region's master orders, reports
// the results, and may decline an order. It decides nothing. Its orders are in a local
// store, so its tasks survive its own restart and the loss of both tiers above.
//
//	agent.go      Run: the parts, their start, and the end: leave or pause
//	config.go     the configuration, its checks and defaults
//	plugins.go    drivers that are plugins
//	inventory.go  what the node offers: capacity, drivers, facts
//	rest.go       returns memory to the kernel when the agent is at rest
//
// The packages below it: engine runs the orders, master holds the sessions with the
// region's servers, store is the local store, api serves logs and commands to the
// tiers above. Package reconcile, lease and health decide and are pure. Package driver
// and its folders run tasks, setup prepares them, supervise stands by each process, and
// facts describe the host.
package agent
