// Package progress decides how far the rollout of a version is: when it begins, has failed by a
// deadline, and is done; and which instances are canaries. It is pure.
//
//	progress.go  Rollout: the facts, and the decision
//	clock.go     Clock: since when instances of a version are being started, for healthy_deadline
//	canary.go    Canaries: the indices of a group while it has canaries
//	regions.go   Divide: the regions of a rollout by how far they are; the pause between two regions
package progress
