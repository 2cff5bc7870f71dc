// Package engine carries out the orders of a node. The loop is one goroutine that owns the
// allocations. It plans with package reconcile, applies the actions, and publishes records
// and reports. All other goroutines give the loop functions to call.
//
//	engine.go     the loop: events, publishing, the end of the agent
//	orders.go     orders of the master: refused, or stored before they are acknowledged
//	actions.go    the actions of a plan: start, stop, adopt, remove
//	events.go     results of runs and checks; requests and grants of leases
//	view.go       calls of the API: allocations, runs, restarts, signals and folders
//	alloc.go      one allocation: its order, actual state and details
//	plan.go       the input of a plan: a part of the allocations or all
//	order.go      decoding of an order into tasks for the drivers
//	env.go        properties of the node, and the NUSA_ variables of a task
//	runner.go     goroutines that start runs, follow them and remove them
//	resize.go     changes of the limits of runs
//	stop.go       goroutines that stop runs, also runs that may begin late
//	recovery.go   what the drivers know of recorded runs at the agent's start
//	compare.go    differences between the records and what the drivers run, and their repair
//	retention.go  bounds on the output and folders of ended allocations
//	checks.go     the schedule of health checks (the decision: package health)
//	check.go      one check: its policy, its decoding and its result for reports
//	probes.go     how a check reaches a task: HTTP, TCP, a command
//	report.go     conversion of states and reasons into reports
//	metrics.go    counters for /metrics
package engine
