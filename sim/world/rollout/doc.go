// Package rollout is a copy of the shell around package progress, without I/O: what is stored about the
// rollout of a version, and what follows from the instances that regions report. The shipped shell is
// global/placer/progress.go.
//
//   - rollout.go: the record, and the evaluation of a rollout
package rollout
