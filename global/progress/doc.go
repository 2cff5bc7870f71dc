// Package progress decides how far the rollout of a version is: when it begins, has failed by a
// deadline, and is done. It is pure.
//
//	progress.go  Rollout: the facts, and the decision
package progress
