// Package rights holds what a federation has stored about who may do what, ready for many
// decisions, and the decision of each call.
//
//   - set.go: Set: roles, bindings and tokens of one version, with a cache of answers
//   - call.go: Call: the principal of a call, for handlers that find the object themselves
//   - convert.go: protobuf messages to and from package authz
//   - answer.go: the answers of the service Auth that need no change
//   - change.go: changes of a set, and their checks
//   - login.go: providers, and the access tokens of their users
package rights
