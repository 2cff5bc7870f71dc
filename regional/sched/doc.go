// Package sched decides which node runs each instance. It is a pure function from a view of
// the region's state to a printable plan with reasons.
//
// Every node is considered for every instance, in a deterministic order. The same input
// gives the same plan. If nothing in the view needs a decision, the plan is empty.
//
// Input and output:
//   - input.go: Input, and the expressions over nodes
//   - plan.go: Plan, its text, and the log commands that it becomes
//   - check.go: Check, which tests a plan without the code that made it
//
// Making a plan:
//   - planner.go: Make, and Planner, which caches nodes and rankings between plans
//   - decide.go: the decision about one group: which indices wait, are replaced or get a node
//   - output.go: what the decision about one group writes into the plan
//   - lost.go: instances on lost nodes, and allocations that no slot wants
//   - rollout.go: which instances are replaced, or get other resources, for a new version or a drain
//   - place.go: chooses nodes for the pending instances of a group, and for a system job
//   - reschedule.go: which nodes an instance avoids after failures and declines (its
//     attempts and back-off: regional/state/allocs.go)
//   - reserve.go: nodes reserved for instances that have waited long
//
// Nodes:
//   - node.go: nodeTable, all nodes with what is free on them
//   - grants.go: which ports and devices of a node an instance gets
//   - filter.go: the reason why a node cannot take an instance
//   - describe.go: the message for such a reason, with figures
//   - score.go: how well a node fits
//   - rank.go: the nodes for an ask, sorted by score
//   - pick.go: the best node for the next instance of a group
//
// Questions about nodes:
//   - refuse.go: why no node takes an instance, counted by reason
//   - explain.go: how each node fits a group
//   - remedy.go: the smallest change of a job with which one more instance fits
//   - draining.go: the groups that still have instances on a draining node; the place of each waiting
//     group in the queue
//   - shape.go: how many instances fit, and sums for the region's report
//   - text.go: formats numbers and times
package sched
