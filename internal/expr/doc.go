// Package expr compiles and evaluates the CEL expressions of job files:
// constraints, affinities and node spreads over one variable, `node`.
//
// An expression is bounded three times: by its length, by an estimate of its cost when it
// is compiled, and by a cost limit when it runs. An expression sees nothing but the node,
// so it has the same value for the same node every time.
//
//   - expr.go: the node that expressions see, compilation, evaluation
//   - cache.go: a bounded cache of compiled expressions
//   - condition.go: conditions of rules, which see a request and its job
//   - event.go: filters of events, for webhooks and buses
//   - when.go: conditions over the parameters of workflows
//   - proto.go: the conversion of a node and of a job
package expr
