// Package reconcile compares the master's orders with the actual state of a node. It
// returns the actions that make the actual state match the orders, in order and with
// reasons. The package is pure. The engine calls the same function after every event and at
// each wake time. If nothing has to change, the plan is empty.
//
//	reconcile.go  orders, actual state, and the plan of each allocation, with each start after a delay
//	plan.go       reasons, actions and the plan as a printable value
//	admit.go      accept or decline: the host's remaining capacity
//	hooks.go      the order in which the tasks of an allocation start and stop
//	resize.go     changes of the limits of tasks that run
//	drift.go      differences between the records and what the drivers run
//	rules.go      when a task is done, or has failed because no restart is left; states for reports
package reconcile
