// Package agent is the role of a node. The agent runs what the region's master orders,
// reports the results, and may decline an order. It chooses no work itself. The agent
// stores its orders, so its tasks survive a restart of the agent and the loss of the tiers
// above.
//
//	agent.go      Run: the parts, their start, and the end: leave or pause
//	config.go     the configuration, its checks and defaults
//	plugins.go    drivers that are plugins
//	inventory.go  what the node offers: capacity, drivers, facts
//	services.go   the copy of the instances of services
//	rest.go       returns memory to the kernel when the agent is at rest
//
// The folders: engine runs the orders, master holds the sessions with the region's servers,
// store is the local store, and api serves logs and commands to the tiers above. The pure
// packages reconcile, lease and health decide. Package driver and its folders run tasks,
// setup prepares them, supervise runs one supervisor beside each process, facts
// describes the host, and gpu finds its accelerators. The folder retry has the pauses between
// attempts, dns answers questions about services, and ordertest makes orders for tests.
package agent
