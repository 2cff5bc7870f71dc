// Package pools says what the policies of node pools weigh, besides resources, when a node is scored:
// how much of a node is really in use, and how full its instance quota is. It is a pure core.
//
//	weights.go  Weights, the policy of a pool; Score, the term of one weight
//	load.go     Load, the use of all nodes for a plan; quantised, so that noise changes nothing
package pools
