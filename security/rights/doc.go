// Package rights holds what a federation has stored about who may do what, ready for many
// decisions, and the decision of each call.
//
//   - set.go: Set: roles, bindings and tokens of one version, with a cache of answers
//   - call.go: Call: the principal of a call, for handlers that find the object themselves
//   - events.go: the events that a caller may read
//   - submit.go: the decision of a submit: rights, rate, and the limits of the namespace
//   - condition.go: conditions of rules
//   - namespace.go: namespaces
//   - local.go: the tokens of one region
//   - convert.go: protobuf messages to and from package authz
//   - answer.go: the answers of the service Auth that need no change
//   - change.go: changes of a set, and their checks
//   - login.go: providers, and the access tokens of their users
package rights
