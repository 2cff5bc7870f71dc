// Package sched decides which node runs each instance: a pure function from a
// view of the region's state to a printable plan with reasons.
//
// Every node is considered for every instance, in a deterministic order. The
// same input gives the same plan. A view in which nothing needs a decision gives
// an empty plan.
//
// What goes in and comes out:
//   - input.go: Input, and the expressions over nodes
//   - plan.go: Plan, its text, and the log commands that it becomes
//   - check.go: Check, which tests a plan without the code that made it
//
// Making a plan:
//   - planner.go: Planner, which keeps nodes and rankings between plans, and Make
//   - decide.go: the decision about one group, index by index: wait, replace, finished
//   - output.go: what the decision about one group writes into the plan
//   - lost.go: instances on lost nodes, and allocations that no slot wants
//   - rollout.go: replacements for a new version, a drain, or a returned node
//   - place.go: nodes for the pending instances of a group, and for a system job
//   - reschedule.go: which nodes an instance avoids after failures and declines (its
//     attempts and back-off: regional/state/allocs.go)
//   - reserve.go: nodes reserved for instances that have waited long
//
// Nodes:
//   - node.go: nodeTable, all nodes with what is free on them
//   - grants.go: which ports and devices of a node an instance gets
//   - filter.go: why a node cannot take an instance
//   - describe.go: that refusal in words with figures
//   - score.go: how well a node fits
//   - rank.go: the nodes of a kind of ask by score
//   - pick.go: the best node for the next instance of a group
//
// Answers about nodes:
//   - refuse.go: why no node takes an instance, counted by reason
//   - explain.go: how each node fits a group
//   - remedy.go: the smallest change of a job that would fit
//   - draining.go: what is still on a draining node
//   - shape.go: how many instances fit, and sums for the region's report
//   - text.go: numbers and times in words
package sched
